"""Token sequences that diagnostics choose, scored without a gradient by the policy before and after the update."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apo_lightning.distributed.root_params import unsharded_root
from apo_lightning.model.packing import Microbatch, PackedSequences
from apo_lightning.types import Advantages, Probe, ProbeStatistics, ReferenceStatistics, Rollouts, TokenStatistics
from apo_lightning.update.minibatch_plan import equalize_microbatches
from apo_lightning.update.run import Run


class Probing:
    """The probes of one step. All methods are collective: under sharding every forward is.

    Args:
        probes: by the `state_key` of the callback that asks; the same keys on every rank.
        device: of the policy.
    """

    def __init__(self, probes: Mapping[str, Probe], device: torch.device) -> None:
        self.probes = probes
        self.device = device
        self.sequences = {name: PackedSequences.of(probe.prompts, probe.completions) for name, probe in probes.items()}
        self.references: dict[str, ReferenceStatistics] = {}
        self.policies_before: dict[str, TokenStatistics] = {}

    def score_before(self, run: Run) -> None:
        """Reference anchors and pre-update policy statistics; the policy has not moved since it sampled."""
        for name, sequences in self.sequences.items():
            probe = self.probes[name]
            if isinstance(probe.anchors, int) and probe.anchors > 0:
                assert run.reference is not None
                with unsharded_root(run.reference.policy):
                    self.references[name] = _score_reference(run, sequences, probe.anchors)
            if probe.before:
                with unsharded_root(run.policy):
                    self.policies_before[name] = _score(run, sequences, self._anchor_ids(name))

    def score_after(self, run: Run) -> dict[str, ProbeStatistics]:
        """Post-update policy statistics, together with those from before the update."""
        with unsharded_root(run.policy):
            return {
                name: ProbeStatistics(
                    probe=self.probes[name],
                    reference=self.references.get(name),
                    before=self.policies_before.get(name),
                    after=_score(run, sequences, self._anchor_ids(name)),
                )
                for name, sequences in self.sequences.items()
            }

    def _anchor_ids(self, name: str) -> Int[Tensor, "tokens anchors"] | None:
        anchors = self.probes[name].anchors
        if isinstance(anchors, Tensor):
            return anchors.to(self.device)
        return self.references[name].anchor_ids if name in self.references else None


def probing_of(run: Run, rollouts: Rollouts, advantages: Advantages) -> Probing:
    """The probes of the diagnostics that are due at this step."""
    probes = {
        callback.state_key: callback.probe(rollouts, advantages)
        for callback in run.trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
        if hasattr(callback, "probe") and callback.is_due(rollouts.step)
    }
    return Probing({name: probe for name, probe in probes.items() if probe is not None}, run.device)


@torch.no_grad()
def _score(run: Run, sequences: PackedSequences, anchor_ids: Int[Tensor, "tokens anchors"] | None) -> TokenStatistics:
    """The policy's statistics of every token of a probe."""
    columns = [_unknown(run, sequences) for _ in range(3)]
    anchors = None if anchor_ids is None else torch.full(anchor_ids.shape, -torch.inf, device=run.device)
    for microbatch in _microbatches(run, sequences):
        index = microbatch.token_index
        ids = None if anchor_ids is None else anchor_ids[index]
        statistics = run.policy(microbatch, ids, temperature=run.settings.temperature)
        values = (statistics.logprobs, statistics.entropy, statistics.max_prob)
        for column, value in zip(columns, values, strict=True):
            column[index] = value
        if anchors is not None:
            assert statistics.anchor_logprobs is not None
            anchors[index] = statistics.anchor_logprobs
    logprobs, entropy, max_prob = columns
    return TokenStatistics(logprobs=logprobs, entropy=entropy, max_prob=max_prob, anchor_logprobs=anchors)


def _score_reference(run: Run, sequences: PackedSequences, anchor_size: int) -> ReferenceStatistics:
    """The reference's log-prob of every token of a probe, and its K most likely tokens there."""
    assert run.reference is not None
    logprobs = _unknown(run, sequences)
    ids = torch.full((len(logprobs), anchor_size), -1, device=run.device)
    anchors = torch.full(ids.shape, -torch.inf, device=run.device)
    for microbatch in _microbatches(run, sequences):
        index = microbatch.token_index
        statistics = run.reference.score(microbatch, anchor_size, temperature=run.settings.temperature)
        assert statistics.anchor_ids is not None
        assert statistics.anchor_logprobs is not None
        logprobs[index] = statistics.logprobs
        ids[index], anchors[index] = statistics.anchor_ids.long(), statistics.anchor_logprobs
    return ReferenceStatistics(logprobs=logprobs, anchor_ids=ids, anchor_logprobs=anchors)


def _microbatches(run: Run, sequences: PackedSequences) -> list[Microbatch]:
    everything, budget = range(len(sequences.completions)), run.settings.tokens_per_microbatch
    return equalize_microbatches(sequences, everything, budget, run.ranks, run.device)[0]


def _unknown(run: Run, sequences: PackedSequences) -> Float[Tensor, "tokens"]:
    return torch.full((sum(map(len, sequences.completions)),), torch.nan, device=run.device)
