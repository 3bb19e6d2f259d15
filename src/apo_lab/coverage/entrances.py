"""Where a trained policy lost right answers: at the entrance or behind it, at which token, and in which layers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lab.coverage.entrance_records import EntranceResult, Row
from apo_lab.diagnostics.exact_coverage import Listed, held_out_prompts, list_answers
from apo_lab.puzzles import Puzzle, PuzzleSource
from apo_lab.statistics.cover import cover_curve
from apo_lab.statistics.entrances import Change, Entrances, change_of_pass_at_k, distances, weights_within
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.records import ModelCard
from apo_lightning.model.average import PARTS, average, weights_of_part
from apo_lightning.model.policy import Policy

ROWS_AT_ONCE = 512
"""Rows of logits over the whole vocabulary, in float64, that are held at once for both models."""


@dataclass(frozen=True, kw_only=True)
class EntranceCoverage:
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

    name: str
    k: int = 64
    base_weights: Sequence[float | int] = (0.25, 0.5, 0.75, 1.0)
    limit: int | None = None
    tokens_per_microbatch: int = 2048

    def __post_init__(self) -> None:
        for name in ("k", "limit", "tokens_per_microbatch"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"coverage.{name} is {value}: it must be at least 1")
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
            decisions=by_decision(entrances, len(prompts)),
            shift=tree.shift(policy, base, of_policy, temperature),
            averages=self._averages(tree, policy, base, temperature),
        )
        return result, entrances

    def _averages(self, tree: "AnswerTree", policy: Policy, base: Policy, temperature: float) -> list[Row]:
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


@dataclass(frozen=True, kw_only=True)
class AnswerTree:
    """The right answers of some prompts: their entrances, and their nodes, which are all that they begin with."""

    listed: Listed
    problem: Int[Tensor, "entrances"]
    """The index of each entrance's prompt."""
    entrances: list[str]
    answer: Int[Tensor, "right"]
    """The index of each right answer among all listed ones."""
    entrance: Int[Tensor, "right"]
    """The index of its entrance."""
    first: Int[Tensor, "entrances"]
    """The first right answer, among all listed ones, that begins with the entrance."""
    is_behind: Bool[Tensor, "tokens"]
    """Whether a token of a right answer lies behind its entrance."""
    token: Int[Tensor, "nodes"]
    """The first token that follows each node, in the first answer that begins with it."""
    problem_of_node: Int[Tensor, "nodes"]
    place: Int[Tensor, "nodes"]
    """The place of that token, 0 for the first decision."""

    @classmethod
    def of(cls, puzzle: Puzzle, listed: Listed) -> "AnswerTree":
        """Build the tree of listed answers, in their order."""
        flat = [(i, answer) for i, of_prompt in enumerate(listed.answers) for answer in of_prompt]
        is_behind = torch.zeros(len(listed.owner), dtype=torch.bool)
        entrances: dict[tuple[int, str], int] = {}
        nodes: dict[tuple[int, str], tuple[int, int]] = {}
        answers: list[tuple[int, int]] = []
        start = 0
        for index, (problem, answer) in enumerate(flat):
            kinds = puzzle.kinds(answer.text)
            if answer.is_valid:
                decision = kinds.index(puzzle.decision)
                for t in range(len(kinds)):
                    nodes.setdefault((problem, answer.text[:t]), (start + t, t - decision))
                is_behind[start + decision + 1 : start + len(kinds)] = True
                beginning = problem, answer.text[: decision + 1]
                answers.append((index, entrances.setdefault(beginning, len(entrances))))
            start += len(kinds)
        first = {entrance: index for index, entrance in reversed(answers)}
        return cls(
            listed=listed,
            problem=torch.tensor([problem for problem, _ in entrances]),
            entrances=[text for _, text in entrances],
            answer=torch.tensor([index for index, _ in answers]),
            entrance=torch.tensor([entrance for _, entrance in answers]),
            first=torch.tensor([first[entrance] for entrance in range(len(entrances))]),
            is_behind=is_behind,
            token=torch.tensor([token for token, _ in nodes.values()]),
            problem_of_node=torch.tensor([problem for problem, _ in nodes]),
            place=torch.tensor([place for _, place in nodes.values()]),
        )

    def logprobs(self, policy: Policy, temperature: float) -> Float[Tensor, "tokens"]:
        """Log-probs of the tokens of all listed answers [nats]."""
        return self.listed.statistics(policy, temperature=temperature)[:, 0]

    def under(self, logprobs: Float[Tensor, "tokens"]) -> Entrances:
        """The entrances under the policy of these `logprobs`."""
        before, behind = (
            torch.zeros_like(self.listed.scores.logprobs).index_add_(0, self.listed.owner, logprobs.where(chosen, 0.0))
            for chosen in (~self.is_behind, self.is_behind)
        )
        skill = torch.zeros(len(self.entrances), dtype=torch.float64)
        skill.index_add_(0, self.entrance, behind[self.answer].exp())
        return Entrances(
            problem=self.problem,
            mass=before[self.first].exp(),
            skill=skill.clamp(max=1.0),  # rounding of float32 log-probs can lift the sum above 1
            num_problems=len(self.listed.prompts),
        )

    def shift(self, policy: Policy, base: Policy, logprobs: Float[Tensor, "tokens"], temperature: float) -> list[Row]:
        """A row for each place: the kinds of token there, `kl` [nats] and `total_variation` of policy and base.

        `logprobs` are the policy's; `EntranceCoverage` defines the mean.
        """
        measured = torch.zeros(len(logprobs), 2, dtype=torch.float64)
        is_node = torch.zeros(len(logprobs), dtype=torch.bool)
        is_node[self.token] = True
        for microbatch in self.listed.microbatches:
            part = microbatch.part(is_node[microbatch.token_index.cpu()])
            hidden, other = policy.hidden_states(part), base.hidden_states(part)
            for chunk in torch.arange(len(hidden)).split(ROWS_AT_ONCE):
                logits, of_base = (
                    states[chunk].double() @ of.head_weight.double().T / temperature
                    for states, of in ((hidden, policy), (other, base))
                )
                measured[part.token_index[chunk].cpu()] = torch.stack(distances(logits, of_base), dim=1).cpu()
        starts = torch.nn.functional.pad(self.listed.owner.diff(), (1, 0), value=1) > 0
        before = logprobs.cumsum(0) - logprobs  # less those of earlier answers, the log-prob of a token's node
        before = (before - before[starts][self.listed.owner])[self.token]
        of_problem = torch.stack([self.place, self.problem_of_node]).unique(dim=1, return_inverse=True)[1]
        nodes = pd.DataFrame(measured[self.token].numpy(), columns=pd.Index(["kl", "total_variation"]))
        nodes = nodes.mul(weights_within(of_problem, before), axis=0).assign(problem=of_problem.numpy())
        nodes["kind"] = [self.listed.kinds[token] for token in self.token]
        rows: list[Row] = []
        for place, group in nodes.groupby(self.place.tolist()):
            means = {
                name: float(group[name].to_numpy().sum()) / group.problem.nunique()
                for name in ("kl", "total_variation")
            }
            rows.append({"place": int(str(place)), "kind": ", ".join(group.kind.unique()), **means})
        return rows


def by_decision(entrances: pd.DataFrame, num_problems: int) -> list[Row]:
    """A row for each first decision: means over its entrances, and `Change.parts` of them."""
    rows: list[Row] = []
    for decision, group in entrances.groupby(entrances.entrance.str[-1]):
        entering, skill = (torch.tensor(group[f"part_of_{name}"].to_numpy()) for name in ("entering", "skill"))
        parts = Change(entering=entering, skill=skill).parts(num_problems)
        means = {str(name): float(group[name].to_numpy().mean()) for name in group.columns[2:-2]}
        rows.append({"decision": str(decision), "num_entrances": len(group), **means, **parts})
    return rows
