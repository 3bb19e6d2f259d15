"""Whether the reference's alternatives are lost during training, and whether they come back."""

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apo_lab.diagnostics.recovery_probes import ProbePlan, RecoveryProbe, build_probes, read_probes, write_probes
from apo_lab.statistics.recovery import (
    NEVER,
    BarrierEvents,
    rank_selectivity,
    ratio_interval,
    survival_curve,
    verdict_selectivity,
)
from apo_lightning.callbacks.step_callback import StepCallback, check_every_n_steps
from apo_lightning.common.process_group import num_processes, process_rank
from apo_lightning.distributed.gathering import items_of_all_ranks
from apo_lightning.errors import ConfigError
from apo_lightning.losses import PolicyLoss
from apo_lightning.metrics.intervals import Interval
from apo_lightning.model.fingerprint import weights_sha256
from apo_lightning.module import RLVRModule
from apo_lightning.types import Advantages, Needs, Probe, Prompt, Rollouts, StepOutput

PAPER_ANCHOR_SIZE = 8
"""The K of the probes under a loss without anchors."""
BARRIERS = ("path", "given")

_logger = logging.getLogger(__name__)


class RecoveryTracker(StepCallback):
    """Logs `recovery/…`: of the reference's likeliest tokens after chosen prefixes, which are lost and which come back.

    Before the first step, probes are made once and stay the same (`recovery_probes.build_probes`); they lie in
    `recovery/probes.jsonl`, with a hash. Runs are to be compared on equal probes: with the same model, data, K and seed
    they are. At each look, with x = log π(k | prefix) and N = G · visits draws of a prompt over the run:

        b_path = N · π(prefix) · π(k | prefix),   b_given = N · π(k | prefix)

    An alternative k of T_K is lost at the first look with b < 1, and recovered at a later one with b ≥ 2. What has
    b < 1 before training is unreachable, and not at risk. Classes: `right`, where some continuation of k was right, and
    `wrong`, where none was. Selectivities are of Δx since before training; flattening a distribution adds nothing to
    them. A claim of recovery is a *difference* of two methods' selectivities on the same probes, at matched pass@1.

    All shares and means weigh a prefix by the inverse of the probability that it was drawn from its completion.
    Intervals are over prompts.

    Args:
        num_prompts: of the training set, drawn by hash; all of them where there are fewer.
        completions_per_prompt: R, with one prefix each.
        continuations: m ≥ 4 of each of the K alternatives of a prefix, sampled once before training.
        visits: how often a prompt is expected to come in the run, in G draws each; sets the barriers.
        anchor_size: K. None: the loss's own, or the paper's 8 under a loss without anchors.
        every_n_steps: look at the steps that this number divides; each costs a forward of the prefixes.
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
        at_least = {"num_prompts": 1, "completions_per_prompt": 1, "continuations": 4, "visits": 0, "anchor_size": 1}
        given = (num_prompts, completions_per_prompt, continuations, visits, anchor_size)
        for (name, least), value in zip(at_least.items(), given, strict=True):
            if value is not None and (value < least or value == 0):
                raise ConfigError(
                    f"callbacks.recovery_tracker.{name} is {value}: give {least or 'more than 0'}"
                    f"{' or more' if least else ''}, or ~callbacks.recovery_tracker"
                )
        self.every_n_steps = check_every_n_steps("recovery_tracker", every_n_steps)
        self.num_prompts, self.completions_per_prompt = num_prompts, completions_per_prompt
        self.continuations = continuations
        self.visits = visits
        self.given_size = anchor_size
        self.probes: list[RecoveryProbe] = []
        self.events: dict[str, BarrierEvents] = {}
        self._log_draws = math.nan
        self._saved: dict[str, Any] = {}
        self.prepare(None)

    def prepare(self, loss: PolicyLoss | None) -> None:
        """Choose K: this loss's, or the paper's where it has none."""
        own_size = 0 if loss is None else loss.support_size
        self.anchor_size = self.given_size or own_size or PAPER_ANCHOR_SIZE
        self.probe_needs = Needs(anchor_size=2 * self.anchor_size)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Sequence[Prompt], batch_idx: int
    ) -> None:
        """Before the run's first step, make the probes; in a run that is gone on from, find them."""
        if self.probes:
            return
        assert isinstance(pl_module, RLVRModule)
        data: Any = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        plan = ProbePlan(
            anchor_size=self.anchor_size,
            num_prompts=self.num_prompts,
            completions_per_prompt=self.completions_per_prompt,
            continuations=self.continuations,
        )
        origin = plan.origin(pl_module, data.train_prompts)
        path = Path(trainer.default_root_dir) / "recovery" / "probes.jsonl"
        if trainer.global_step > 0:
            if not path.exists():
                raise ConfigError(
                    f"{path} is missing, and probes are made of the untrained policy: go on in the run's own folder, "
                    "or with ~callbacks.recovery_tracker"
                )
            probes = read_probes(path, origin)
        else:
            _logger.info("recovery: sampling the probes of %d prompts", min(self.num_prompts, len(data.train_prompts)))
            probes = build_probes(plan, pl_module, data.train_prompts)
            weights = weights_sha256(pl_module.policy.model)
            if trainer.is_global_zero:
                write_probes(path, probes, {**origin, "model": weights})
        self.begin(probes, pl_module.settings.group_size)

    def begin(self, probes: Sequence[RecoveryProbe], group_size: int) -> None:
        """Take over the probes, and what was saved of their alternatives.

        Args:
            probes: of all ranks.
            group_size: G.
        """
        self.probes = list(probes)
        self._log_draws = math.log(group_size * self.visits)
        prefix, logprobs = self._before_training()
        self.events = {
            name: BarrierEvents.before_training(draws[:, : self.anchor_size].flatten())
            for name, draws in self._log_expected(prefix, logprobs).items()
        }
        for name, columns in self._saved.items():
            lost, recovered = (torch.tensor(columns[key], dtype=torch.long) for key in ("lost_at", "recovered_at"))
            at_risk = self.events[name].at_risk
            self.events[name] = BarrierEvents(at_risk=at_risk, lost_at=lost, recovered_at=recovered)

    def probe(self, rollouts: Rollouts, advantages: Advantages) -> Probe:
        """This rank's prefixes; the last token of each is there to ask at its position for the alternatives."""
        own = self.probes[process_rank() :: num_processes()]
        sequences = [(*probe.prefix, probe.alternatives[0]) for probe in own]
        ids = torch.full((sum(map(len, sequences)), 2 * self.anchor_size), -1)
        for row, probe in zip(_last_rows(sequences), own, strict=True):
            ids[row] = torch.tensor(probe.alternatives)
        return Probe(prompts=[probe.prompt for probe in own], completions=sequences, anchors=ids)

    def on_step(self, step: StepOutput) -> dict[str, float]:
        """Look at the policy that the update has left."""
        answer = step.probes[self.state_key].after
        assert answer.anchor_logprobs is not None
        found, start = [], 0
        logprobs, alternatives = answer.logprobs.cpu().double(), answer.anchor_logprobs.cpu().double()
        place = range(process_rank(), len(self.probes), num_processes())
        rows = _last_rows(step.probes[self.state_key].probe.completions)
        for number, row in zip(place, rows, strict=True):
            found.append((number, float(logprobs[start:row].sum()), alternatives[row].tolist()))
            start = row + 1
        everything = sorted(items_of_all_ranks(found))
        prefix = torch.tensor([item[1] for item in everything], dtype=torch.float64)
        return self.look(prefix, torch.tensor([item[2] for item in everything], dtype=torch.float64), step.step)

    def look(
        self, prefix: Float[Tensor, "probes"], logprobs: Float[Tensor, "probes alternatives"], step: int
    ) -> dict[str, float]:
        """Enter what the policy says of all probes, and return the metrics.

        Args:
            prefix: log π(prefix) [nats].
            logprobs: log π(k | prefix) of the 2K alternatives [nats].
            step: training steps done.
        """
        expected = self._log_expected(prefix, logprobs)
        metrics = {"recovery/num_nonfinite": float((~logprobs.isfinite()).sum() + (~prefix.isfinite()).sum())}
        success = self._column("success")
        metrics["recovery/num_unjudged"] = float(success.isnan().sum())
        for barrier, draws in expected.items():
            log_draws = draws[:, : self.anchor_size].flatten()
            self.events[barrier] = self.events[barrier].after_look(log_draws, step)
            for kind, chosen in (("right", success > 0), ("wrong", success == 0)):
                numbers = self._barrier_metrics(self.events[barrier], log_draws, chosen.flatten())
                metrics |= {f"recovery/{name}_{barrier}_{kind}": value for name, value in numbers.items()}
        change = logprobs - self._before_training()[1]
        inside = slice(self.anchor_size)
        verdict = verdict_selectivity(change[:, inside], self._column("ref_logprobs")[:, inside], success)
        for name, values in (("verdict", verdict), ("rank", rank_selectivity(change, self.anchor_size))):
            counted = values.isfinite()
            interval = self._interval(values, counted.double())
            metrics[f"recovery/num_prefixes_{name}"] = float(counted.sum())
            metrics |= _named(f"recovery/selectivity_{name}", interval)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """What has happened so far, as plain data; the probes lie in the run's folder."""
        return {
            name: {"lost_at": events.lost_at.tolist(), "recovered_at": events.recovered_at.tolist()}
            for name, events in self.events.items()
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what has happened in the run that is resumed, once its probes are there."""
        self._saved = state_dict

    def _before_training(self) -> tuple[Float[Tensor, "probes"], Float[Tensor, "probes alternatives"]]:
        return self._column("prefix_logprob"), self._column("logprobs")

    def _log_expected(
        self, prefix: Float[Tensor, "probes"], logprobs: Float[Tensor, "probes alternatives"]
    ) -> dict[str, Float[Tensor, "probes alternatives"]]:
        """Log b of both barriers."""
        given = self._log_draws + logprobs
        return {"path": given + prefix[:, None], "given": given}

    def _barrier_metrics(
        self,
        events: BarrierEvents,
        log_draws: Float[Tensor, "alternatives"],
        chosen: Bool[Tensor, "alternatives"],
    ) -> dict[str, float]:
        """Counts and shares of one class of alternatives at one barrier."""
        at_risk = chosen & events.at_risk
        weights = self._column("weight").repeat_interleave(self.anchor_size)
        shape = (len(self.probes), self.anchor_size)
        sizes = torch.where(at_risk, weights, 0.0).view(shape).sum(1)
        alive = torch.where(at_risk & (events.lost_at == NEVER), weights, 0.0).view(shape).sum(1)
        interval = self._interval(alive / sizes, sizes / self._column("weight"), bounds=(0.0, 1.0))
        _, curve = survival_curve(events.lost_at[at_risk], weights[at_risk])
        survival = (curve[-1] if curve else 1.0) if at_risk.any() else math.nan
        below = at_risk & (log_draws < 0)
        known = at_risk & ~log_draws.isnan()
        return {
            "num_at_risk": float(at_risk.sum()),
            "num_unreachable": float((chosen & ~events.at_risk).sum()),
            "num_lost": float((at_risk & (events.lost_at != NEVER)).sum()),
            "num_recovered": float((at_risk & (events.recovered_at != NEVER)).sum()),
            "survival": survival,
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
        """Of the mean of a value a prefix, weighed by the probe and by how much of the prefix is counted."""
        weights = self._column("weight") * sizes
        numerators, denominators = {}, {}
        for probe, value, weight in zip(self.probes, values.tolist(), weights.tolist(), strict=True):
            if weight > 0:
                numerators[probe.prompt_id] = numerators.get(probe.prompt_id, 0.0) + weight * value
                denominators[probe.prompt_id] = denominators.get(probe.prompt_id, 0.0) + weight
        top, bottom = (torch.tensor(list(sums.values()), dtype=torch.float64) for sums in (numerators, denominators))
        return ratio_interval(top, bottom, bounds=bounds)

    def _column(self, name: str) -> Tensor:
        """A field of all probes; [N] or [N, K], float64, NaN where nothing is known."""
        rows = [getattr(probe, name) for probe in self.probes]
        rows = [[math.nan if v is None else v for v in row] if isinstance(row, tuple) else row for row in rows]
        return torch.tensor(rows, dtype=torch.float64)


def _named(name: str, interval: Interval) -> dict[str, float]:
    return {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _last_rows(sequences: Sequence[Sequence[int]]) -> list[int]:
    """The row of each sequence's last token, where all tokens stand one after the other."""
    return (torch.tensor([len(sequence) for sequence in sequences], dtype=torch.long).cumsum(0) - 1).tolist()
