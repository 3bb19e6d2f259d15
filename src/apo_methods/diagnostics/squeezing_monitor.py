"""Where the probability of penalised tokens goes: to the leader, to other anchors, or to the tail."""

import lightning.pytorch as pl
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apo_lightning.common.process_group import process_rank
from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.rollout.collector import sample_seed
from apo_lightning.types import Advantages, Needs, Probe, ProbeStatistics, Rollouts, StepOutput
from apo_methods.diagnostics.anchors import AnchorDiagnostic
from apo_methods.statistics.squeezing import leaders, mass_of_parts, squeeze_shares, squeeze_sums, total


class SqueezingMonitor(AnchorDiagnostic):
    """Logs `squeeze/…`: how one update moved probability at the tokens of some completions.

    At each token the vocabulary is the sampled token y, the leader (the likeliest anchor other than y under the
    sampling policy), the other anchors and the tail. `squeeze_shares` gives the share of the lost probability that each
    part took, over tokens whose own probability fell.

    An update moves every token, so a change at an error's token is only partly due to that error. Completions with an
    advantage of 0 therefore serve as a control; `…_difference` is error minus control.

    Source: the squeezing effect, Ren and Sutherland 2024, "Learning dynamics of LLM finetuning".
    Departure: the leader is chosen from T_K without y. A token that the policy prefers, but that is not among the
        reference's K likeliest, belongs to the tail.

    Args:
        num_completions: how many wrong ones with A < 0, and how many with A = 0, are sampled over all ranks. Each costs
            one forward of the reference and two of the policy.
        anchor_size: K; None: the loss's own, or the paper's 8 under a loss without anchors.
        every_n_steps: measure at multiples of this step.
    """

    needs = Needs(reference_model=True)

    def __init__(self, num_completions: int = 32, anchor_size: int | None = None, every_n_steps: int = 10) -> None:
        super().__init__("squeezing_monitor", anchor_size, every_n_steps, num_completions=num_completions)
        self.num_completions = num_completions
        self.seed = 0
        self._num_error_tokens = 0

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Take the run's seed, which decides the sample."""
        self.seed = int(getattr(pl_module, "seed", 0))

    def probe(self, rollouts: Rollouts, advantages: Advantages) -> Probe:
        """Sample the completions."""
        values, correct = advantages.values.flatten(), rollouts.is_correct.flatten()
        is_error = ~correct & (values < 0) & advantages.keep.flatten()
        errors, controls = (
            sampled_completions(rollouts, chosen, self.num_completions, seed=self.seed, stream=stream)
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
        """Compare the policy before and after the update."""
        before, after = part_masses(step.probes[self.state_key])
        is_error = torch.arange(len(before)) < self._num_error_tokens
        shares, metrics = {}, {}
        for name, chosen in (("error", is_error), ("control", ~is_error)):
            sums = total(from_all_ranks(squeeze_sums(before[chosen], after[chosen])))
            shares[name] = squeeze_shares(sums)
            for count in ("num_fell", "num_rose", "num_nonfinite"):
                metrics[f"squeeze/{count}_{name}"] = sums[count]
        for key, value in shares["error"].items():
            metrics[f"squeeze/{key}_error"] = value
            metrics[f"squeeze/{key}_control"] = shares["control"][key]
            metrics[f"squeeze/{key}_difference"] = value - shares["control"][key]
        return metrics


def sampled_completions(
    rollouts: Rollouts, is_candidate: Bool[Tensor, "completions"], size: int, *, seed: int, stream: str
) -> list[int]:
    """This rank's part of a simple random sample of the candidates of all ranks, in ascending order. Collective.

    A completion's priority is a hash of the run's seed, `stream`, the step, its prompt and its sample. The sample
    therefore does not depend on the number of ranks, and a resumed run takes the same one. `size` counts all ranks;
    all candidates are taken if there are fewer.
    """
    candidates = is_candidate.nonzero().flatten().tolist()
    priorities = [
        sample_seed(seed, stream, rollouts.step, rollouts.prompts[b // rollouts.group_size].id, b % rollouts.group_size)
        for b in candidates
    ]
    parts, rank = from_all_ranks(priorities), process_rank()
    ranked = sorted((value, owner, place) for owner, part in enumerate(parts) for place, value in enumerate(part))
    return sorted(candidates[place] for _, owner, place in ranked[:size] if owner == rank)


def part_masses(answer: ProbeStatistics) -> tuple[Float[Tensor, "tokens 4"], Float[Tensor, "tokens 4"]]:
    """`squeezing.mass_of_parts` of the probe's tokens before and after the update, on the CPU."""
    assert answer.reference is not None
    assert answer.reference.anchor_ids is not None
    assert answer.before is not None
    ids = answer.reference.anchor_ids.cpu()
    token_ids = torch.tensor([token for completion in answer.probe.completions for token in completion])
    is_candidate = (ids >= 0) & (ids != token_ids.long()[:, None])
    leader, masses = None, []
    for said in (answer.before, answer.after):
        assert said.anchor_logprobs is not None
        logprobs, of_anchors = said.logprobs.cpu(), said.anchor_logprobs.cpu()
        leader = leaders(of_anchors, is_candidate) if leader is None else leader
        masses.append(mass_of_parts(logprobs, of_anchors, is_candidate, leader))
    return masses[0], masses[1]
