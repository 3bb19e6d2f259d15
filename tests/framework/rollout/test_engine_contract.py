"""One suite for all engines."""

import importlib.util

import pytest
import torch

pytest.register_assert_rewrite("engine_contract")

from engine_bench import Bench, RemoteBench  # noqa: E402
from engine_contract import CONTRACTS, IN_BFLOAT16  # noqa: E402

VLLM = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((Bench, "transformers", True), id="transformers-tied"),
        pytest.param((Bench, "transformers", False), id="transformers-untied"),
        pytest.param((RemoteBench, "vllm", True), id="vllm-tied", marks=VLLM),
        pytest.param((RemoteBench, "vllm", False), id="vllm-untied", marks=VLLM),
    ],
)
def bench(request, tmp_path_factory):
    make, engine_name, tied = request.param
    bench = make(engine_name, tied, tmp_path_factory.mktemp("model"))
    yield bench
    bench.close()


@pytest.mark.parametrize("contract", [contract.__name__ for contract in CONTRACTS])
def test_contract(bench, contract):
    bench.run(contract)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((Bench, "transformers"), id="transformers"),
        pytest.param((RemoteBench, "vllm"), id="vllm", marks=[*VLLM, pytest.mark.slow]),
    ],
)
def bfloat16_bench(request, tmp_path_factory):
    make, engine_name = request.param
    bench = make(engine_name, True, tmp_path_factory.mktemp("model"), torch.bfloat16)
    yield bench
    bench.close()


@pytest.mark.parametrize("contract", [contract.__name__ for contract in IN_BFLOAT16])
def test_contract_in_bfloat16(bfloat16_bench, contract):
    bfloat16_bench.run(contract)
