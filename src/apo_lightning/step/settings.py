"""The sizes of a training step, from the keys of `configs/train.yaml` of the same names."""

from dataclasses import dataclass

from apo_lightning.errors import ConfigError
from apo_lightning.losses.aggregation import AGGREGATIONS
from apo_lightning.rollout.engine import MAX_TEMPERATURE, MIN_TEMPERATURE


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """Sizes of one step. Source: the paper's hyper-parameter table.

    Attributes:
        prompts_per_step: problems sampled between two weight syncs.
        group_size: completions a problem, G.
        prompts_per_minibatch: problems an optimizer step; divides `prompts_per_step`.
        tokens_per_microbatch: budget of one forward and backward, prompts included; memory only.
        max_prompt_tokens: longer prompts were dropped when the data was loaded.
        max_completion_tokens: completions are cut there.
        temperature: of sampling, and of every probability that the loss reads.
        aggregation: `token_mean`, `sequence_mean_token_mean` or `sequence_mean_token_sum_norm`.
        old_logprobs: with several optimizer steps a rollout, `trainer` recomputes log π_old, and `rollout` uses
            the engine's log-probs.
        gradient_clip_norm: None: off.
        max_nonfinite_steps: the run ends after this many optimizer steps in a row whose loss or gradient is not finite.
        validation_samples: completions a held-out problem.
        schedule_horizon: rollouts that the schedule is made for, at least those of the run; None: as many.
    """

    prompts_per_step: int
    group_size: int
    prompts_per_minibatch: int
    tokens_per_microbatch: int
    max_prompt_tokens: int
    max_completion_tokens: int
    temperature: float
    aggregation: str
    old_logprobs: str
    gradient_clip_norm: float | None
    max_nonfinite_steps: int
    validation_samples: int
    schedule_horizon: int | None = None

    def __post_init__(self) -> None:
        for name in (
            "prompts_per_step",
            "group_size",
            "prompts_per_minibatch",
            "tokens_per_microbatch",
            "max_prompt_tokens",
            "max_completion_tokens",
            "max_nonfinite_steps",
            "validation_samples",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give at least 1")
        if self.prompts_per_step % self.prompts_per_minibatch:
            raise ConfigError(
                f"prompts_per_minibatch is {self.prompts_per_minibatch}, which does not divide prompts_per_step "
                f"{self.prompts_per_step}: the last optimizer step of a rollout would weigh its tokens differently"
            )
        if not MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE:
            within = f"[{MIN_TEMPERATURE}, {MAX_TEMPERATURE}]"
            raise ConfigError(f"temperature is {self.temperature}: training samples at a temperature in {within}")
        if self.aggregation not in AGGREGATIONS:
            raise ConfigError(f"aggregation is {self.aggregation!r}: choose one of {', '.join(AGGREGATIONS)}")
        if self.old_logprobs not in ("trainer", "rollout"):
            raise ConfigError(f"old_logprobs is {self.old_logprobs!r}: choose trainer or rollout")
        if self.gradient_clip_norm is not None and self.gradient_clip_norm <= 0:
            raise ConfigError(f"gradient_clip_norm is {self.gradient_clip_norm}: give a positive norm, or null")

    @property
    def minibatches_per_step(self) -> int:
        """Optimizer steps a rollout."""
        return self.prompts_per_step // self.prompts_per_minibatch

    @property
    def max_model_len(self) -> int:
        """The longest sequence the model must hold [tokens]."""
        return self.max_prompt_tokens + self.max_completion_tokens
