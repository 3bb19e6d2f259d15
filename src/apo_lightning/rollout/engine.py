"""The interface between the trainer and whatever samples completions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from transformers import PretrainedConfig

from apo_lightning.types import Completion, GenerationRequest

FinishedListener = Callable[[int, Completion], None]
"""Told of a completion the moment it is finished: the index of its request, and the completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """The settings of the run that an engine needs before it starts. The same on all ranks but for the ranks."""

    model_dir: Path
    """A Hugging Face folder with `config.json`, needed during `setup` only. Weights come by `sync_weights`."""
    dtype: torch.dtype
    """The dtype of the engine's weights and activations; log-probs are float32 in any case."""
    max_model_len: int
    """The longest prompt + completion [tokens]."""
    device: torch.device
    seed: int
    """The run's seed. Samples depend on the seeds of their requests alone."""
    global_rank: int = 0
    local_rank: int = 0
    trainer_bytes: int = 0
    """Memory of the device that the trainer claims after the engine has started, while it is awake [bytes]."""
    world_size: int = 1
    """Ranks that each run an engine of their own; above 1 torch.distributed must be initialised."""


@runtime_checkable
class RolloutEngine(Protocol):
    """Samples completions from a copy of the policy that lives next to the trainer.

        check, check_model → setup → (sync_weights → generate* → [sleep → wake])* → close

    An engine starts without weights, and loses them in `sleep`: it generates only after a complete
    `sync_weights`. Log-probs are those of softmax(logits / temperature), the distribution sampled from;
    greedy requests (temperature 0) report softmax(logits). Where `top_p` is below 1 the distribution is cut to the
    nucleus and normalised again. What `generate` returns depends on the weights and on its requests alone, not on
    calls before it.

    `setup`, `sync_weights` and `close` are collective when `world_size` > 1; `generate` is not.
    None of them changes the process: random states, threads, environment and gradient mode stay as they were.
    """

    @property
    def name(self) -> str:
        """The engine's name for the log and the summary."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which it takes its weights; known after `setup`."""
        ...

    @property
    def num_preempted(self) -> int:
        """How often the last `generate` took keys and values from a sequence for want of memory, and recomputed them.

        The completions stay the same, and take longer. Ranks that share an engine count it once.
        """
        ...

    def check(self, device: torch.device) -> None:
        """Raise `ConfigError` when this engine cannot run here; loads nothing."""
        ...

    def check_model(self, config: PretrainedConfig, device: torch.device) -> None:
        """Raise `ConfigError` when it can run here, but not this model; loads nothing."""
        ...

    def setup(self, context: EngineContext) -> None:
        """Start without weights. Call it after torch.distributed was initialised and the policy sharded."""
        ...

    def sync_weights(self, named_weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        """Take over every parameter of the policy, by Hugging Face name, each exactly once.

        A tied head is given twice, as `model.embed_tokens.weight` and as `lm_head.weight`. The iterator is read to
        its end even when something is wrong with it, since reading it may be a collective operation.

        Raises:
            StaleWeightsError: A name is missing, unknown or double, or a shape differs. The engine then refuses to
                generate until a complete sync.
        """
        ...

    def generate(
        self, requests: Sequence[GenerationRequest], on_finished: FinishedListener | None = None
    ) -> list[Completion]:
        """One completion a request, in the order of the requests.

        Args:
            requests: all of a step in one call, so that no sequence waits for another call's slowest one.
            on_finished: called once a request, in the order in which they finish, from the thread of this call and
                between two forwards: what it does delays them. What it raises ends the call, and is raised, on all
                ranks that share the engine; it is then ready for the next one.

        Raises:
            ConfigError: A request that can never be served (too long, empty, a temperature out of range).
            StaleWeightsError: No complete sync since `setup`, `wake` or a failed sync.
        """
        ...

    def sleep(self) -> None:
        """Give the accelerator's memory back; the weights are lost. Asleep already, it does nothing."""
        ...

    def wake(self) -> None:
        """Make room for weights again; `sync_weights` comes next. Awake already, it does nothing."""
        ...

    def close(self) -> None:
        """Free everything, for good. The trainer's process group survives. A second call does nothing."""
        ...
