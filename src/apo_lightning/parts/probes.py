"""Token sequences that diagnostics choose, scored without a gradient by the policy before and after the update."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.optim import Optimizer

from apo_lightning.distributed.root_params import unsharded_root
from apo_lightning.model.packing import PackedSequences
from apo_lightning.step.part import Part, Setup
from apo_lightning.step.plan import StepPlan
from apo_lightning.types import Advantages, Probe, ProbeStatistics, ReferenceStatistics, TokenStatistics


class Probes(Part):
    """Scores the sequences of the diagnostics that are due at a step, before and after its update.

    All methods are collective: under sharding every forward is, and either all ranks have a callback's probe or none.

    Args:
        callbacks: those of the run that have a `probe`.
    """

    name = "probes"

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self.callbacks = callbacks
        self.results: dict[str, ProbeStatistics] = {}
        self._forget()

    def _forget(self) -> None:
        self.probes: dict[str, Probe] = {}
        self.sequences: dict[str, PackedSequences] = {}
        self.references: dict[str, ReferenceStatistics] = {}
        self.policies_before: dict[str, TokenStatistics] = {}

    def planned(self, setup: Setup, plan: StepPlan, advantages: Advantages) -> None:
        """Ask the callbacks, and score by reference and policy, which has not moved since it sampled."""
        rollouts = plan.table.rollouts
        due = [callback for callback in self.callbacks if callback.is_due(rollouts.step)]
        asked = {callback.state_key: callback.probe(rollouts, advantages) for callback in due}
        self.probes = {name: probe for name, probe in asked.items() if probe is not None}
        for name, probe in self.probes.items():
            sequences = self.sequences[name] = PackedSequences.of(probe.prompts, probe.completions)
            if isinstance(probe.anchors, int) and probe.anchors > 0:
                assert setup.reference is not None
                with unsharded_root(setup.reference.policy):
                    self.references[name] = _score_reference(setup, sequences, probe.anchors)
            if probe.before:
                with unsharded_root(setup.policy):
                    self.policies_before[name] = _score(setup, sequences, self._anchor_ids(name, setup.device))

    def updated(self, setup: Setup, step: int, optimizer: Optimizer) -> None:
        """Score by the policy after the update."""
        with unsharded_root(setup.policy):
            self.results = {
                name: ProbeStatistics(
                    probe=self.probes[name],
                    reference=self.references.get(name),
                    before=self.policies_before.get(name),
                    after=_score(setup, sequences, self._anchor_ids(name, setup.device)),
                )
                for name, sequences in self.sequences.items()
            }
        self._forget()

    def output(self) -> dict[str, Any]:
        """`StepOutput.probes`, by the `state_key` of the callback."""
        return {"probes": self.results}

    def _anchor_ids(self, name: str, device: torch.device) -> Int[Tensor, "tokens anchors"] | None:
        anchors = self.probes[name].anchors
        if isinstance(anchors, Tensor):
            return anchors.to(device)
        return self.references[name].anchor_ids if name in self.references else None


@torch.no_grad()
def _score(
    setup: Setup, sequences: PackedSequences, anchor_ids: Int[Tensor, "tokens anchors"] | None
) -> TokenStatistics:
    """The policy's statistics of every token of a probe."""
    columns = [_unknown(setup, sequences) for _ in range(3)]
    anchors = None if anchor_ids is None else torch.full(anchor_ids.shape, -torch.inf, device=setup.device)
    for microbatch in setup.microbatches(sequences, range(len(sequences.completions))):
        index = microbatch.token_index
        ids = None if anchor_ids is None else anchor_ids[index]
        statistics = setup.policy(microbatch, ids, temperature=setup.settings.temperature)
        values = (statistics.logprobs, statistics.entropy, statistics.max_prob)
        for column, value in zip(columns, values, strict=True):
            column[index] = value
        if anchors is not None:
            assert statistics.anchor_logprobs is not None
            anchors[index] = statistics.anchor_logprobs
    logprobs, entropy, max_prob = columns
    return TokenStatistics(logprobs=logprobs, entropy=entropy, max_prob=max_prob, anchor_logprobs=anchors)


def _score_reference(setup: Setup, sequences: PackedSequences, anchor_size: int) -> ReferenceStatistics:
    """The reference's log-prob of every token of a probe, and its K most likely tokens there."""
    assert setup.reference is not None
    logprobs = _unknown(setup, sequences)
    ids = torch.full((len(logprobs), anchor_size), -1, device=setup.device)
    anchors = torch.full(ids.shape, -torch.inf, device=setup.device)
    for microbatch in setup.microbatches(sequences, range(len(sequences.completions))):
        index = microbatch.token_index
        statistics = setup.reference.score(microbatch, anchor_size, temperature=setup.settings.temperature)
        assert statistics.anchor_ids is not None
        assert statistics.anchor_logprobs is not None
        logprobs[index] = statistics.logprobs
        ids[index], anchors[index] = statistics.anchor_ids.long(), statistics.anchor_logprobs
    return ReferenceStatistics(logprobs=logprobs, anchor_ids=ids, anchor_logprobs=anchors)


def _unknown(setup: Setup, sequences: PackedSequences) -> Float[Tensor, "tokens"]:
    return torch.full((sum(map(len, sequences.completions)),), torch.nan, device=setup.device)
