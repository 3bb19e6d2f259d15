"""Each thing that cannot work is one line, before any weights are loaded."""

import pytest
import torch

from apo_lightning.errors import ConfigError
from apo_lightning.run import prepare
from apo_lightning.run.user_message import user_message
from composing import composed

TINY = ("model=tiny", "engine=transformers", "callbacks=none")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("algo.loss.push_coef=1.0", "algo.loss.pull_coef=0.3"), ("push_coef", "pull_coef", "clip_eps")),
        (("algo=grpo", "group_size=1"), ("group_size", "1")),
        (("algo.loss.anchor_size=99",), ("anchor_size", "99", "vocabulary")),
        (("data=gsm8k", "data.path=/no/such/file.jsonl"), ("/no/such/file.jsonl",)),
        (("data.max_completion_tokens=5000",), ("max_completion_tokens", "5000", "4096")),
        (("prompts_per_minibatch=5",), ("prompts_per_minibatch", "5")),
        (("trainer=fsdp_cpu2", "trainer.devices=4"), ("data_parallel_size", "2", "4")),
        (("engine=vllm", "gpu_memory_utilization=1.5"), ("gpu_memory_utilization is 1.5", "at most 1")),
        (("engine=vllm", "model.config.head_dim=16"), ("heads of 16", "engine=transformers")),
        (("engine=auto", "model.config.head_dim=16"), ("heads of 16", "engine=transformers")),
        (("model.stop_tokens=['<|end|>','<|trun|>']",), ("'<|trun|>'", "near it: '<|turn|>'")),
        (("model.path=/no/such/model", "model.config=null"), ("/no/such/model",)),
        (("data=math", "data.path={golds}", "reward=numeric"), ("frac", "math_verify")),
        (("scheduler.name=cosin",), ("scheduler cannot be made: ValueError: cosin", "cosine")),
        (("optimizer.betas=[0.9,2]",), ("optimizer cannot be made: ValueError", "beta")),
        (("trainer.accelerator=gup",), ("trainer.accelerator is gup: choose auto, cpu, gpu",)),
        (("trainer.devices=all",), ("trainer.devices is all: give their number, or auto",)),
        (("trainer.devices=0",), ("trainer.devices is 0",)),
        (("trainer.max_steps=0",), ("trainer.max_steps is 0", "1 or more")),
        (("trainer.val_check_interval=0.5",), ("trainer.val_check_interval is 0.5", "whole number")),
        (("schedule_horizon=3", "trainer.max_steps=4"), ("schedule_horizon is 3", "max_steps 4")),
        (("reward=puzzle",), ("data.puzzle", "choose another")),
        (("data=gsm8k", "data.path={long}", "data.max_prompt_tokens=4"), ("max_prompt_tokens",)),
    ],
)
def test_what_cannot_work_is_one_line_that_names_it(overrides, words, tmp_path):
    golds = tmp_path / "golds.jsonl"
    golds.write_text("".join(f'{{"problem": "Halve {i}.", "answer": "\\\\frac{{{i}}}{{2}}"}}\n' for i in range(1, 600)))
    paths = {"golds": golds, "long": golds}
    cfg = composed(*TINY, *(override.format(**paths) for override in overrides))
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Hydra wraps what a constructor raises
        prepare(cfg)
    message = user_message(caught.value)
    assert message is not None, repr(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_trainer_without_a_gpu_says_so():
    with pytest.raises(ConfigError, match=r"8 GPUs.*trainer=cpu"):
        prepare(composed(*TINY, "trainer=fsdp8"))


def test_a_rank_that_a_launcher_has_not_started_does_not_wait_for_others(monkeypatch):
    tiny = (*TINY, "data.max_operand=20", "data.num_validation=4")
    monkeypatch.setenv("LOCAL_RANK", "0")
    prepare(composed(*tiny))
    with pytest.raises(ConfigError, match=r"LOCAL_RANK=0.* asks for 2 processes.*unset LOCAL_RANK"):
        prepare(composed(*tiny, "trainer=fsdp_cpu2"))
