"""The history of every training prompt over its visits: solved, lost, recovered, and how many answers it gets."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from apo_lab.diagnostics.settings import check_at_least
from apo_lab.statistics.mcnemar import mcnemar_p_value
from apo_lab.statistics.urn import beta_binomial_pass_at_k, expected_distinct, missing_mass
from apo_lightning.callbacks import StepCallback
from apo_lightning.distributed.gathering import items_of_all_ranks
from apo_lightning.metrics.functional import pass_at_k
from apo_lightning.types import Rollouts, StepOutput

MODELLED_GROUPS = 8
"""k of `history/beta_binomial@k`, in groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """The samples of one prompt in one step."""

    step: int
    num_samples: int
    num_correct: int
    answer_counts: tuple[int, ...]
    """Number of samples per answer, descending; samples without an answer are not counted."""


class PromptHistory(StepCallback):
    """Keeps every visit to every training prompt, and logs `history/…` at each step.

    - *Transitions* compare the last two visits of each prompt: from solved (a right sample) to unsolved it is lost, in
      the reverse case recovered. Both occur under a constant policy too, so their difference counts, with the exact
      two-sided McNemar test. A prompt counts once, however often it was visited.
    - `history/pooled@k` pools the last `window_visits` visits of each prompt that has as many. The k samples come from
      several policies; by convexity the value is above the pass@k of any of them on average, so it is no pass@k.
    - `history/beta_binomial@k` models k = 8 groups from every prompt's last visit: exact if success rates have a beta
      distribution, too high if some problems are never solved. Do not rank methods by it.
    - Distinct answers in half a group and the mass of unseen answers are means over the step's prompts. Answers are
      compared character by character, as the verifier extracted them.

    The history is saved with checkpoints and is the same on all ranks.

    Args:
        window_visits: number of visits that are pooled.
    """

    def __init__(self, window_visits: int = 4) -> None:
        check_at_least("prompt_history", 2, window_visits=window_visits)
        self.window_visits = window_visits
        self.visits: dict[str, list[Visit]] = {}
        """Prompt id → its visits by step."""

    def on_step(self, step: StepOutput) -> dict[str, float]:
        """Add the step's visits of all ranks."""
        found = sorted(items_of_all_ranks(list(visits_of(step.rollouts))), key=lambda item: item[0])
        for prompt_id, visit in found:
            earlier = [one for one in self.visits.get(prompt_id, []) if one.step < visit.step]
            self.visits[prompt_id] = [*earlier, visit]
        group_size = step.rollouts.group_size
        return {
            **transition_metrics(self.visits.values()),
            **window_metrics(self.visits.values(), self.window_visits, group_size),
            **answer_metrics([visit for _, visit in found], max(1, group_size // 2)),
        }

    def state_dict(self) -> dict[str, Any]:
        """All visits, as plain data."""
        return {
            name: [[v.step, v.num_samples, v.num_correct, list(v.answer_counts)] for v in visits]
            for name, visits in self.visits.items()
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the visits of the resumed run."""
        names = ("step", "num_samples", "num_correct")
        self.visits = {
            name: [Visit(**dict(zip(names, row, strict=True)), answer_counts=tuple(counts)) for *row, counts in visits]
            for name, visits in state_dict.items()
        }


def visits_of(rollouts: Rollouts) -> Iterable[tuple[str, Visit]]:
    """Prompt id and visit of each prompt of one rank."""
    size = rollouts.group_size
    for place, prompt in enumerate(rollouts.prompts):
        verdicts = rollouts.verdicts[place * size : (place + 1) * size]
        answers = Counter(verdict.extracted for verdict in verdicts if verdict.extracted is not None)
        yield (
            prompt.id,
            Visit(
                step=rollouts.step,
                num_samples=size,
                num_correct=sum(verdict.status == "correct" for verdict in verdicts),
                answer_counts=tuple(sorted(answers.values(), reverse=True)),
            ),
        )


def transition_metrics(histories: Iterable[Sequence[Visit]]) -> dict[str, float]:
    """Counts of prompts, and the test that as many are recovered as lost."""
    counts: Counter[str] = Counter()
    for visits in histories:
        counts["prompts"] += 1
        counts["initially_solved"] += visits[0].num_correct > 0
        if len(visits) > 1:
            was, is_now = visits[-2].num_correct > 0, visits[-1].num_correct > 0
            counts["revisited"] += 1
            counts["lost"] += was and not is_now
            counts["recovered"] += is_now and not was
    names = ("prompts", "initially_solved", "revisited", "lost", "recovered")
    return {f"history/num_{name}": float(counts[name]) for name in names} | {
        "history/net_recovered": float(counts["recovered"] - counts["lost"]),
        "history/net_p_value": mcnemar_p_value(counts["lost"], counts["recovered"], "two-sided"),
    }


def window_metrics(histories: Iterable[Sequence[Visit]], window_visits: int, group_size: int) -> dict[str, float]:
    """`history/pooled@k` at k = G, 2G, … up to half of a window's samples, and `history/beta_binomial@k` at 8G."""
    everything = list(histories)
    windows = [visits[-window_visits:] for visits in everything if len(visits) >= window_visits]
    drawn, correct = (
        torch.tensor([sum(getattr(visit, name) for visit in window) for window in windows], dtype=torch.long)
        for name in ("num_samples", "num_correct")
    )
    metrics = {"history/num_full_windows": float(len(windows))}
    k = group_size
    while 2 * k <= window_visits * group_size:
        metrics[f"history/pooled@{k}"] = float(pass_at_k(drawn, correct, k).mean()) if windows else math.nan
        k *= 2
    last = [visits[-1] for visits in everything]
    n, c = (torch.tensor([getattr(visit, name) for visit in last]) for name in ("num_samples", "num_correct"))
    k = MODELLED_GROUPS * group_size
    return metrics | {f"history/beta_binomial@{k}": beta_binomial_pass_at_k(n, c, k)}


def answer_metrics(visits: Sequence[Visit], k: int) -> Mapping[str, float]:
    """Distinct answers in k samples and missing mass, as means over the prompts with k samples that have an answer."""
    enough = [visit for visit in visits if sum(visit.answer_counts) >= k]
    distinct = [expected_distinct(visit.answer_counts, k) for visit in enough]
    missing = [missing_mass(visit.answer_counts) for visit in enough]
    return {
        f"history/distinct_answers@{k}": math.fsum(distinct) / len(enough) if enough else math.nan,
        "history/missing_mass": math.fsum(missing) / len(enough) if enough else math.nan,
        "history/num_too_few_answers": float(len(visits) - len(enough)),
        "history/num_unparsed": float(sum(visit.num_samples - sum(visit.answer_counts) for visit in visits)),
    }
