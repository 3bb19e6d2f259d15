"""Where a trained policy lost right answers: at the entrance or behind it, at which token, and in which layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from apo_lab.coverage.entrance_records import EntranceResult
from apo_lab.diagnostics.answer_tree import AnswerTree, Row
from apo_lab.diagnostics.listed_answers import held_out_prompts, list_answers
from apo_lab.puzzles import PuzzleSource
from apo_lab.statistics.entrances import change_of_pass_at_k
from apo_lab.statistics.exact import cover_curve
from apo_lightning.common.ranges import Checked, Within
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.records import ModelCard
from apo_lightning.model.average import PARTS, average, weights_of_part
from apo_lightning.model.policy import Policy


@dataclass(frozen=True, kw_only=True)
class EntranceCoverage(Checked):
    """Compare a policy with its base model, exactly. Its fields are the keys of `configs/coverage/entrances.yaml`.

    The problems are a puzzle's held-out ones, all whose right answers are listed. The first decision of an answer is
    its first token of the kind `Puzzle.decision`; an *entrance* is a beginning of a right answer, up to and with it:
    `C` of the lock answer `C73`, `9*` of `9*5-7+3+1`. `Entrances` and `change_of_pass_at_k` say what is measured there.

    The *shift* is the distance of the policy's next-token distribution from the base model's, over the whole
    vocabulary, by the token's place relative to the first decision. At each place it is a mean over the beginnings of
    right answers with so many tokens, each once, weighted by the policy's probability of it, to a sum of 1 in each
    problem; then over problems. So it is the expected distance on the policy's own beginnings, given that a right
    answer can still follow; at the first token that is always so.

    Source: "Locked at the Entrance", arXiv 2608.29188, for entrances, shift by position, forced prefixes and averages
    of late layers. Departures: all is exact, and the loss is divided between entrance and skill.

    Attributes:
        name: of the preset.
        k: samples of a problem, of pass@k and of the entrances that are entered.
        base_weights: w of the averages (1 − w)·θ + w·θ_base of each part of the model; none: no averages.
        limit: of problems, the first ones; None: all.
        tokens_per_microbatch: affects memory and speed only.

    Raises:
        ConfigError: a value is out of range.
    """

    section: ClassVar[str] = "coverage."

    name: str
    k: Annotated[int, Within("[1, inf)")] = 64
    base_weights: Sequence[float | int] = (0.25, 0.5, 0.75, 1.0)
    limit: Annotated[int | None, Within("[1, inf)")] = None
    tokens_per_microbatch: Annotated[int, Within("[1, inf)")] = 2048

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(0 < weight <= 1 for weight in self.base_weights):
            raise ConfigError(f"coverage.base_weights is {[*self.base_weights]}: give weights above 0 and at most 1")

    @torch.no_grad()
    def measure(
        self,
        policy: Policy,
        base: Policy,
        source: PuzzleSource,
        prompt_template: str | None,
        model: ModelCard,
        *,
        temperature: float,
    ) -> tuple[EntranceResult, pd.DataFrame]:
        """Score all right answers under both models and under the averages; the policy's weights are restored.

        `model` is the policy's identity, `temperature` that of its samples. Returns the record, and a row for each
        entrance of each problem with `Entrances.values` and its parts; raises `ConfigError` as `ExactCoverage`.
        """
        prompts = held_out_prompts(source, policy.tokenizer, prompt_template)[: self.limit]
        tree = AnswerTree.of(source.puzzle, list_answers(source.puzzle, prompts, policy, self.tokens_per_microbatch))
        of_base, of_policy = (tree.logprobs(of, temperature) for of in (base, policy))
        before, after = tree.under(of_base), tree.under(of_policy)
        change = change_of_pass_at_k(before, after, self.k)
        models = {"base": before, "policy": after, "forced": replace(after, mass=before.mass)}
        columns = {"problem": [prompts[i].problem for i in tree.problem], "entrance": tree.entrances}
        for of in ("base", "policy"):
            columns |= {f"{of}_{name}": values.numpy() for name, values in models[of].values(self.k).items()}
        columns |= {"part_of_entering": change.entering.numpy(), "part_of_skill": change.skill.numpy()}
        entrances = pd.DataFrame(columns)
        result = EntranceResult(
            puzzle=source.puzzle.name,
            decision=source.puzzle.decision,
            k=self.k,
            temperature=temperature,
            model=model,
            num_problems=len(prompts),
            metrics={name: found.metrics(self.k) | cover_curve(found.success) for name, found in models.items()},
            change=change.parts(len(prompts)),
            decisions=by_decision(entrances, [text[-1] for text in tree.entrances], change.signed(), len(prompts)),
            shift=tree.shift(policy, base, of_policy, temperature),
            averages=self._averages(tree, policy, base, temperature),
        )
        return result, entrances

    def _averages(self, tree: AnswerTree, policy: Policy, base: Policy, temperature: float) -> list[Row]:
        weights, others = (dict(of.model.named_parameters()) for of in (policy, base))
        trained = {name: weight.clone() for name, weight in weights.items()}
        rows: list[Row] = []
        for part in PARTS:
            of_base = weights_of_part(others, part, policy.model.config.num_hidden_layers)
            for weight in self.base_weights if of_base else ():
                average(weights, of_base, weight)
                found = tree.under(tree.logprobs(policy, temperature)).metrics(self.k)
                average(weights, trained, 1.0)
                rows.append({"part": part, "base_weight": float(weight), **found})
        return rows


def by_decision(
    entrances: pd.DataFrame,
    decisions: Sequence[str],
    parts: Mapping[str, Float[Tensor, "entrances"]],
    num_problems: int,
) -> list[Row]:
    """A row for each first decision: means over its entrances, and their `parts` as in `Change.parts`."""
    values = [column for column in entrances.columns if column.startswith(("base_", "policy_"))]
    sums = pd.DataFrame({name: part.numpy() / num_problems for name, part in parts.items()})
    rows: list[Row] = []
    for decision, places in entrances.groupby(list(decisions)).indices.items():
        means = {name: float(entrances[name].to_numpy()[places].mean()) for name in values}
        of_parts = {name: float(sums[name].to_numpy()[places].sum()) for name in parts}
        rows.append({"decision": str(decision), "num_entrances": len(places), **means, **of_parts})
    return rows
