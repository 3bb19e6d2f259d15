"""Whether tokens that the reference finds likely are lost during training, and whether they are recovered."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apo_lab.diagnostics.recovery_probes import ProbePlan, RecoveryProbe, build_probes, read_probes, write_probes
from apo_lab.diagnostics.settings import check_at_least, measured_anchor_size, present
from apo_lab.statistics.recovery import (
    NEVER,
    BarrierEvents,
    rank_selectivity,
    ratio_interval,
    verdict_selectivity,
)
from apo_lightning.callbacks import StepCallback, check_every_n_steps
from apo_lightning.common.process_group import num_processes, process_rank
from apo_lightning.distributed.gathering import items_of_all_ranks
from apo_lightning.errors import ConfigError
from apo_lightning.losses import PolicyLoss
from apo_lightning.metrics.intervals import Interval
from apo_lightning.model.fingerprint import weights_sha256
from apo_lightning.module import RLVRModule
from apo_lightning.types import Advantages, Needs, Probe, Prompt, Rollouts, StepOutput


class RecoveryTracker(StepCallback):
    """Logs `recovery/…`: which of the reference's likeliest tokens after fixed prefixes are lost, and which recovered.

    The probes are made once, before the first step (`recovery_probes.build_probes`), and kept in
    `recovery/probes.jsonl` with a hash. Compare runs on equal probes only: same model, data, K and seed. At each
    evaluation point, with x = log π(k | prefix) and N = G · visits samples of a prompt over the run:

        b_path = N · π(prefix) · π(k | prefix),   b_given = N · π(k | prefix)

    An alternative k of T_K is lost at the first point with b < 1, and recovered at a later one with b ≥ 2. With b < 1
    before training it is unreachable and not at risk. Classes: `right` if some continuation of k was right, `wrong` if
    none was. Selectivities are of Δx since before training; flattening the distribution does not change them. To
    claim recovery, give the *difference* of two methods' selectivities on the same probes, at matched pass@1.

    Shares and means weight a prefix by the inverse of the probability that it was sampled from its completion.
    Intervals are over prompts.

    Args:
        num_prompts: of the training set, sampled by hash; all of them if there are fewer.
        completions_per_prompt: R, with one prefix each.
        continuations: m ≥ 4, sampled once before training after each of the K alternatives of a prefix.
        visits: how often the run is expected to visit a prompt, with G samples each; sets the barriers.
        anchor_size: K; None: the loss's own, or the paper's 8 under a loss without anchors.
        every_n_steps: measure at multiples of this step; each costs a forward of the prefixes.
    """

    def __init__(
        self,
        num_prompts: int = 64,
        completions_per_prompt: int = 4,
        continuations: int = 4,
        visits: float | int = 7.2,
        anchor_size: int | None = None,
        every_n_steps: int = 10,
    ) -> None:
        name, at_least_one = (
            "recovery_tracker",
            {"num_prompts": num_prompts, "completions_per_prompt": completions_per_prompt},
        )
        check_at_least(name, 1, **at_least_one, anchor_size=anchor_size)
        check_at_least(name, 4, continuations=continuations)
        if visits <= 0:
            raise ConfigError(f"callbacks.{name}.visits is {visits}: give more than 0, or ~callbacks.{name}")
        self.every_n_steps = check_every_n_steps("recovery_tracker", every_n_steps)
        self.plan = ProbePlan(
            anchor_size=measured_anchor_size(anchor_size, None),
            num_prompts=num_prompts,
            completions_per_prompt=completions_per_prompt,
            continuations=continuations,
        )
        self.visits = visits
        self.given_size = anchor_size
        self.probes: list[RecoveryProbe] = []
        self.events: dict[str, BarrierEvents] = {}
        self._saved: dict[str, Any] = {}
        self.prepare(None)

    def prepare(self, loss: PolicyLoss | None) -> None:
        """Choose K."""
        self.anchor_size = measured_anchor_size(self.given_size, loss)
        self.plan = replace(self.plan, anchor_size=self.anchor_size)
        self.needs = Needs(reference_model=True)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Sequence[Prompt], batch_idx: int
    ) -> None:
        """Make the probes before the first step; read them in a resumed run."""
        if self.probes:
            return
        assert isinstance(pl_module, RLVRModule)
        data: Any = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        origin = self.plan.origin(pl_module, data.train_prompts)
        path = Path(trainer.default_root_dir) / "recovery" / "probes.jsonl"
        if trainer.global_step > 0:
            if not path.exists():
                raise ConfigError(
                    f"{path} is missing, and probes need the untrained policy: resume in the run's folder, "
                    "or with ~callbacks.recovery_tracker"
                )
            probes = read_probes(path, origin)
        else:
            probes = build_probes(self.plan, pl_module, data.train_prompts)
            weights = weights_sha256(pl_module.policy.model)
            if trainer.is_global_zero:
                write_probes(path, probes, {**origin, "model": weights})
        self.begin(probes, pl_module.settings.group_size)

    def begin(self, probes: Sequence[RecoveryProbe], group_size: int) -> None:
        """Start from the probes of all ranks, with G samples per visit, and from the events of a resumed run."""
        self.probes = list(probes)
        self._log_draws = math.log(group_size * self.visits)
        names = ("prefix_logprob", "logprobs", "ref_logprobs", "success", "weight")
        self._columns = {name: _column([getattr(probe, name) for probe in probes]) for name in names}
        expected = self._log_expected(self._columns["prefix_logprob"], self._columns["logprobs"])
        self.events = {name: BarrierEvents.before_training(draws) for name, draws in expected.items()}
        for name, steps in self._saved.items():
            saved = {key: torch.tensor(values, dtype=torch.long) for key, values in steps.items()}
            self.events[name] = replace(self.events[name], **saved)

    def probe(self, rollouts: Rollouts, advantages: Advantages) -> Probe:
        """This rank's prefixes, each with one more token at whose position the alternatives are scored."""
        own = self.probes[process_rank() :: num_processes()]
        sequences = [(*probe.prefix, probe.alternatives[0]) for probe in own]
        ids = torch.full((sum(map(len, sequences)), 2 * self.anchor_size), -1)
        for row, probe in zip(_last_rows(sequences), own, strict=True):
            ids[row] = torch.tensor(probe.alternatives)
        return Probe(prompts=[probe.prompt for probe in own], completions=sequences, anchors=ids)

    def on_step(self, step: StepOutput) -> dict[str, float]:
        """Measure the policy after the update."""
        answer = step.probes[self.state_key]
        logprobs, alternatives = (
            values.cpu().double() for values in (answer.after.logprobs, present(answer.after.anchor_logprobs))
        )
        found, start = [], 0
        places = range(process_rank(), len(self.probes), num_processes())
        for place, row in zip(places, _last_rows(answer.probe.completions), strict=True):
            found.append((place, float(logprobs[start:row].sum()), alternatives[row].tolist()))
            start = row + 1
        _, *columns = zip(*sorted(items_of_all_ranks(found)), strict=True)
        prefix, anchors = (torch.tensor(column, dtype=torch.float64) for column in columns)
        return self.record(prefix, anchors, step.step)

    def record(
        self, prefix: Float[Tensor, "probes"], logprobs: Float[Tensor, "probes alternatives"], step: int
    ) -> dict[str, float]:
        """Record the events of an evaluation point, from log π(prefix) and log π(k | prefix) of the 2K alternatives."""
        success, inside = self._columns["success"], slice(self.anchor_size)
        metrics = {
            "recovery/num_nonfinite": float((~logprobs.isfinite()).sum() + (~prefix.isfinite()).sum()),
            "recovery/num_unjudged": float(success.isnan().sum()),
        }
        for barrier, log_draws in self._log_expected(prefix, logprobs).items():
            self.events[barrier] = self.events[barrier].updated(log_draws, step)
            for kind, chosen in (("right", success > 0), ("wrong", success == 0)):
                numbers = self._barrier_metrics(self.events[barrier], log_draws, chosen.flatten())
                metrics |= {f"recovery/{name}_{barrier}_{kind}": value for name, value in numbers.items()}
        change = logprobs - self._columns["logprobs"]
        verdict = verdict_selectivity(change[:, inside], self._columns["ref_logprobs"][:, inside], success)
        for name, values in (("verdict", verdict), ("rank", rank_selectivity(change, self.anchor_size))):
            counted = values.isfinite()
            interval = self._interval(values, counted.double())
            metrics[f"recovery/num_prefixes_{name}"] = float(counted.sum())
            key = f"recovery/selectivity_{name}"
            metrics |= {key: interval.mean, f"{key}_low": interval.low, f"{key}_high": interval.high}
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """The events so far, as plain data; the probes are in the run's folder."""
        return {
            name: {"lost_at": events.lost_at.tolist(), "recovered_at": events.recovered_at.tolist()}
            for name, events in self.events.items()
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the events of the resumed run until its probes are read."""
        self._saved = state_dict

    def _log_expected(
        self, prefix: Float[Tensor, "probes"], logprobs: Float[Tensor, "probes alternatives"]
    ) -> dict[str, Float[Tensor, "anchors"]]:
        """log b of the K anchors of all prefixes at both barriers."""
        given = self._log_draws + logprobs[:, : self.anchor_size]
        return {"path": (given + prefix[:, None]).flatten(), "given": given.flatten()}

    def _barrier_metrics(
        self,
        events: BarrierEvents,
        log_draws: Float[Tensor, "anchors"],
        chosen: Bool[Tensor, "anchors"],
    ) -> dict[str, float]:
        """Counts and shares for one class of alternatives at one barrier."""
        at_risk = chosen & events.at_risk
        weights = self._columns["weight"].repeat_interleave(self.anchor_size)
        shape = (len(self.probes), self.anchor_size)
        sizes = torch.where(at_risk, weights, 0.0).view(shape).sum(1)
        retained = torch.where(at_risk & (events.lost_at == NEVER), weights, 0.0).view(shape).sum(1)
        interval = self._interval(retained / sizes, sizes / self._columns["weight"], bounds=(0.0, 1.0))
        below = at_risk & (log_draws < 0)
        known = at_risk & ~log_draws.isnan()
        return {
            "num_at_risk": float(at_risk.sum()),
            "num_unreachable": float((chosen & ~events.at_risk).sum()),
            "num_lost": float((at_risk & (events.lost_at != NEVER)).sum()),
            "num_recovered": float((at_risk & (events.recovered_at != NEVER)).sum()),
            # Only the end of the run censors, so the estimate of Kaplan and Meier is the share retained.
            "survival": interval.mean,
            "survival_low": interval.low,
            "survival_high": interval.high,
            "prevalence": float(weights[below].sum() / weights[known].sum()) if known.any() else math.nan,
        }

    def _interval(
        self,
        values: Float[Tensor, "probes"],
        sizes: Float[Tensor, "probes"],
        bounds: tuple[float, float] | None = None,
    ) -> Interval:
        """Interval of a mean over prefixes, weighted by the probe's weight and by how much of the prefix is counted."""
        weights = self._columns["weight"] * sizes
        counted = (weights > 0).nonzero().flatten()
        ids = [self.probes[i].prompt_id for i in counted.tolist()]
        places = {prompt_id: place for place, prompt_id in enumerate(dict.fromkeys(ids))}
        owner = torch.tensor([places[prompt_id] for prompt_id in ids], dtype=torch.long)
        top, bottom = (
            torch.zeros(len(places), dtype=torch.float64).index_add_(0, owner, part[counted])
            for part in (weights * values, weights)
        )
        return ratio_interval(top, bottom, bounds=bounds)


def _column(rows: Sequence[Any]) -> Tensor:
    """One field of all probes: [N] or [N, K], float64, NaN for None."""
    rows = [[math.nan if v is None else v for v in row] if isinstance(row, tuple) else row for row in rows]
    return torch.tensor(rows, dtype=torch.float64)


def _last_rows(sequences: Sequence[Sequence[int]]) -> list[int]:
    """The row of each sequence's last token in the concatenation of all sequences."""
    return (torch.tensor([len(sequence) for sequence in sequences], dtype=torch.long).cumsum(0) - 1).tolist()
