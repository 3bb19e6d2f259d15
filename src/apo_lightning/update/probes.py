"""Token sequences that diagnostics choose, scored without a gradient by the policy before and after the update."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
        self.sequences = {name: ProbeSequences(probe, device) for name, probe in probes.items()}
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


@dataclass(frozen=True, slots=True)
class ProbeSequences:
    """A probe's completions as they are run; number 0 is a stand-in of one token, run where a rank has none left."""

    probe: Probe
    device: torch.device

    @property
    def completions(self) -> range:
        """The numbers of the probe's own completions."""
        return range(1, len(self.probe.completions) + 1)

    @property
    def num_tokens(self) -> int:
        """T of the probe."""
        return sum(map(len, self.probe.completions))

    def microbatches(
        self, completions: Sequence[int], tokens_per_microbatch: int, *, at_least: int = 1
    ) -> list[Microbatch]:
        """The given completions under a token budget, in so many micro-batches or more; token 0 is the stand-in's."""
        prompts = list(dict.fromkeys([(0,), *self.probe.prompts]))
        place = {prompt: i for i, prompt in enumerate(prompts)}
        packed = PackedSequences(
            prompts=prompts,
            completions=[(0,), *self.probe.completions],
            owners=[0, *(place[prompt] for prompt in self.probe.prompts)],
        )
        return packed.microbatches(completions, tokens_per_microbatch, self.device, at_least=at_least)


@torch.no_grad()
def _score(run: Run, sequences: ProbeSequences, anchor_ids: Int[Tensor, "tokens anchors"] | None) -> TokenStatistics:
    """The policy's statistics of every token of a probe."""
    # The stand-in's row comes first, and is left out at the end.
    ids = None if anchor_ids is None else torch.cat([anchor_ids.new_full((1, anchor_ids.shape[1]), -1), anchor_ids])
    columns = [_unknown(sequences) for _ in range(3)]
    anchors = None if ids is None else torch.full(ids.shape, -torch.inf, device=sequences.device)
    for microbatch in _microbatches(run, sequences):
        index = microbatch.token_index
        statistics = run.policy(microbatch, None if ids is None else ids[index], temperature=run.settings.temperature)
        values = (statistics.logprobs, statistics.entropy, statistics.max_prob)
        for column, value in zip(columns, values, strict=True):
            column[index] = value
        if anchors is not None:
            assert statistics.anchor_logprobs is not None
            anchors[index] = statistics.anchor_logprobs
    logprobs, entropy, max_prob = (column[1:] for column in columns)
    return TokenStatistics(
        logprobs=logprobs,
        entropy=entropy,
        max_prob=max_prob,
        anchor_logprobs=None if anchors is None else anchors[1:],
    )


def _score_reference(run: Run, sequences: ProbeSequences, anchor_size: int) -> ReferenceStatistics:
    """The reference's log-prob of every token of a probe, and its K most likely tokens there."""
    assert run.reference is not None
    logprobs = _unknown(sequences)
    ids = torch.full((len(logprobs), anchor_size), -1, device=sequences.device)
    anchors = torch.full(ids.shape, -torch.inf, device=sequences.device)
    for microbatch in _microbatches(run, sequences):
        index = microbatch.token_index
        statistics = run.reference.score(microbatch, anchor_size, temperature=run.settings.temperature)
        assert statistics.anchor_ids is not None
        assert statistics.anchor_logprobs is not None
        logprobs[index] = statistics.logprobs
        ids[index], anchors[index] = statistics.anchor_ids.long(), statistics.anchor_logprobs
    return ReferenceStatistics(logprobs=logprobs[1:], anchor_ids=ids[1:], anchor_logprobs=anchors[1:])


def _microbatches(run: Run, sequences: ProbeSequences) -> list[Microbatch]:
    budget = run.memory.tokens_per_microbatch
    return equalize_microbatches(sequences, sequences.completions, budget, run.ranks)[0]


def _unknown(sequences: ProbeSequences) -> Float[Tensor, "tokens"]:
    return torch.full((1 + sequences.num_tokens,), torch.nan, device=sequences.device)
