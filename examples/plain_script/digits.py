"""GRPO without Hydra: the module, its data and an engine made in Python, and Lightning's own `Trainer`."""

from functools import partial
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger

from apo_lightning.advantages import GroupNormalized
from apo_lightning.checkpoints import Checkpointer, CheckpointSettings, StopRequest
from apo_lightning.common.phases import PhaseClock
from apo_lightning.data import ArithmeticSource, PromptDataModule
from apo_lightning.losses import GRPO
from apo_lightning.model.policy import Policy
from apo_lightning.model.spec import PolicySpec
from apo_lightning.module import RLVRModule
from apo_lightning.parts.engine_check import EngineCheck
from apo_lightning.rewards import CallableReward
from apo_lightning.rollout.collector import Collector
from apo_lightning.rollout.transformers_engine import TransformersEngine
from apo_lightning.step.settings import StepSettings

SEED, OUTPUT = 1, Path("outputs")
LLAMA = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}


def digits(completions: list[str], **_: object) -> list[float]:
    """The share of digits in each completion."""
    return [sum(map(str.isdigit, text)) / max(len(text), 1) for text in completions]


spec = PolicySpec(name="mine", config={"model_type": "llama", "tie_word_embeddings": True, "eos_token_id": 2, **LLAMA})
tokenizer = spec.load_tokenizer()
policy = Policy(spec.load_model(SEED), tokenizer, torch.float32)
data = PromptDataModule(ArithmeticSource(max_operand=9, num_validation=8), tokenizer, prompts_per_step=8, seed=SEED)
data.prepare()
settings = StepSettings(
    prompts_per_step=8, group_size=8, prompts_per_minibatch=8, tokens_per_microbatch=4096, max_prompt_tokens=96,
    max_completion_tokens=8, temperature=1.0, aggregation="token_mean", old_logprobs="trainer", gradient_clip_norm=1.0,
    max_nonfinite_steps=3, validation_samples=1,
)  # fmt: skip
checkpoints = CheckpointSettings(save_every=20, keep=1, best=None), OUTPUT / "checkpoints", {}, {}, None, StopRequest()
module = RLVRModule(
    policy=policy, reference=None, loss=GRPO(), advantage=GroupNormalized(), parts=[EngineCheck()],
    collector=Collector(
        engine=TransformersEngine(sequences_per_batch=64), reward=CallableReward(digits, format="text"), run_seed=SEED,
        tokenizer=tokenizer, max_completion_tokens=8, stop_token_ids=policy.stop_token_ids, clock=PhaseClock(),
    ),
    checkpointer=Checkpointer(*checkpoints), settings=settings, optimizer=partial(torch.optim.AdamW, lr=3e-3),
    scheduler=partial(torch.optim.lr_scheduler.LinearLR, start_factor=0.2, total_iters=5),
    train_prompts=data.train_prompts, validation_names=data.validation_names, seed=SEED,
)  # fmt: skip
trainer = pl.Trainer(
    accelerator="cpu", max_steps=60, val_check_interval=5, num_sanity_val_steps=0,
    enable_checkpointing=False, inference_mode=False, log_every_n_steps=1, logger=CSVLogger(OUTPUT, "", ""),
    callbacks=[LearningRateMonitor("step"), EarlyStopping("train/reward", mode="max", stopping_threshold=0.9)],
)  # fmt: skip
trainer.fit(module, datamodule=data)
