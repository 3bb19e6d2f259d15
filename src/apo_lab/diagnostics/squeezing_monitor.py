"""Where the probability of punished tokens goes: to the leader, to other anchors, or to the tail."""

import lightning.pytorch as pl
import torch
from jaxtyping import Bool
from torch import Tensor

from apo_lab.diagnostics.drawing import drawn_completions
from apo_lab.statistics.squeezing import SqueezeSums, leaders, mass_of_parts, squeeze_shares
from apo_lightning.callbacks.step_callback import StepCallback, check_every_n_steps
from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.errors import ConfigError
from apo_lightning.losses import PolicyLoss
from apo_lightning.types import Advantages, Needs, Probe, ProbeStatistics, Rollouts, StepOutput

PAPER_ANCHOR_SIZE = 8
"""The K that is measured under a loss without anchors."""


class SqueezingMonitor(StepCallback):
    """Logs `squeeze/…`: what a whole update did to the tokens of some completions, by the policy before and after it.

    At each token the vocabulary is the sampled token y, the leader (the anchor other than y that the sampling policy
    finds likeliest), the other anchors and the tail. Over tokens whose own probability fell, `squeezing.squeeze_shares`
    says what each part has taken of what y has lost, and how much more the leader than in proportion.

    An update moves every token, so what happens at an error's token is not all because of that error. The same is
    therefore measured on completions whose advantage is 0, and `…_difference` is error minus control.

    Source: the squeezing effect, Ren and Sutherland 2024, "Learning dynamics of LLM finetuning".
    Departure: the leader is that of T_K without y. A token that the policy prefers and the reference does not have
        among its K likeliest counts to the tail.

    Args:
        num_completions: wrong ones of A < 0, and as many of A = 0, drawn by lot over all ranks; fewer where there are
            fewer. Each is run once by the reference and twice by the policy, without a gradient.
        anchor_size: K. None: the loss's own, or the paper's 8 under a loss without anchors.
        every_n_steps: measure at the steps that this number divides.
    """

    def __init__(self, num_completions: int = 32, anchor_size: int | None = None, every_n_steps: int = 10) -> None:
        for name, value in (("num_completions", num_completions), ("anchor_size", anchor_size)):
            if value is not None and value < 1:
                raise ConfigError(
                    f"callbacks.squeezing_monitor.{name} is {value}: give 1 or more, or ~callbacks.squeezing_monitor"
                )
        self.every_n_steps = check_every_n_steps("squeezing_monitor", every_n_steps)
        self.num_completions = num_completions
        self.given_size = anchor_size
        self.seed = 0
        self._num_error_tokens = 0
        self.prepare(None)

    def prepare(self, loss: PolicyLoss | None) -> None:
        """Choose the anchors to measure: this loss's, or the paper's where it has none."""
        own_size = 0 if loss is None else loss.support_size
        self.anchor_size = self.given_size or own_size or PAPER_ANCHOR_SIZE
        self.probe_needs = Needs(anchor_size=self.anchor_size)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Take the run's seed, of the lot."""
        self.seed = int(getattr(pl_module, "seed", 0))

    def probe(self, rollouts: Rollouts, advantages: Advantages) -> Probe:
        """Draw the completions."""
        values, correct = advantages.values.flatten(), rollouts.is_correct.flatten()
        is_error = ~correct & (values < 0) & advantages.keep.flatten()
        errors, controls = (
            drawn_completions(
                rollouts, chosen.nonzero().flatten().tolist(), self.num_completions, seed=self.seed, stream=stream
            )
            for chosen, stream in ((is_error, "squeeze-error"), (values == 0, "squeeze-control"))
        )
        self._num_error_tokens = sum(len(rollouts.completions[b].token_ids) for b in errors)
        chosen = [*errors, *controls]
        return Probe(
            prompts=[rollouts.prompts[b // rollouts.group_size].token_ids for b in chosen],
            completions=[rollouts.completions[b].token_ids for b in chosen],
            anchors=self.anchor_size,
            before=True,
        )

    def on_step(self, step: StepOutput) -> dict[str, float]:
        """Compare the policy after the update with the one before."""
        before, after = part_masses(step.probes[self.state_key])
        is_error = torch.arange(len(before)) < self._num_error_tokens
        shares, metrics = {}, {}
        for name, chosen in (("error", is_error), ("control", ~is_error)):
            sums = SqueezeSums.total(from_all_ranks(SqueezeSums.of(before[chosen], after[chosen])))
            shares[name] = squeeze_shares(sums)
            for count in ("num_fell", "num_rose", "num_nonfinite"):
                metrics[f"squeeze/{count}_{name}"] = getattr(sums, count)
        for key, value in shares["error"].items():
            metrics[f"squeeze/{key}_error"] = value
            metrics[f"squeeze/{key}_control"] = shares["control"][key]
            metrics[f"squeeze/{key}_difference"] = value - shares["control"][key]
        return metrics


def part_masses(answer: ProbeStatistics) -> tuple[Tensor, Tensor]:
    """`squeezing.mass_of_parts` of every token of the probe before and after the update, [T, 4] on the CPU."""
    reference, before, after = answer.reference, answer.before, answer.after
    assert reference is not None
    assert reference.anchor_ids is not None
    assert before is not None
    assert before.anchor_logprobs is not None
    assert after.anchor_logprobs is not None
    ids = reference.anchor_ids.cpu()
    token_ids = torch.tensor([token for completion in answer.probe.completions for token in completion])
    is_candidate: Bool[Tensor, "tokens anchors"] = (ids >= 0) & (ids != token_ids.long()[:, None])
    of_anchors = before.anchor_logprobs.cpu()
    leader = leaders(of_anchors, is_candidate)
    return (
        mass_of_parts(before.logprobs.cpu(), of_anchors, is_candidate, leader),
        mass_of_parts(after.logprobs.cpu(), after.anchor_logprobs.cpu(), is_candidate, leader),
    )
