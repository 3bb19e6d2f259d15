"""One suite for all engines."""

import importlib.util

import pytest
import torch

pytest.register_assert_rewrite("engine_contract")

from engine_bench import Bench, RemoteBench  # noqa: E402
from engine_contract import CONTRACTS  # noqa: E402

VLLM = [pytest.mark.vllm, pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")]


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


@pytest.mark.parametrize("contract", CONTRACTS)
def test_contract(bench, contract):
    bench.run(contract)


@pytest.mark.parametrize("make_engine", [(Bench, "transformers"), pytest.param((RemoteBench, "vllm"), marks=VLLM)])
def test_in_bfloat16_the_weights_are_compared_to_the_bit(make_engine, tmp_path):
    make, name = make_engine
    bench = make(name, True, tmp_path, torch.bfloat16)
    for contract in (
        "an_engine_that_keeps_its_first_weights_is_found_by_version_three",
        "one_changed_weight_is_found_in_every_tensor",
        "a_nan_of_the_policy_is_no_stale_weight",
    ):
        bench.run(contract)
    bench.close()
