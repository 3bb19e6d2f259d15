"""The right answers of a puzzle as a tree: their entrances, and what a policy does at each beginning."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lab.diagnostics.listed_answers import Listed
from apo_lab.puzzles import Puzzle
from apo_lab.statistics.entrances import Entrances, distances, weights_within
from apo_lightning.model.policy import Policy

Row = Mapping[str, str | int | float]
"""A row of a table, by column."""
ROWS_AT_ONCE = 512
"""Rows of logits over the whole vocabulary, in float64, that are held at once for both models."""


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
        starts = self.listed.starts
        before = logprobs.cumsum(0) - logprobs  # less those of earlier answers, the log-prob of a token's node
        before = (before - before[starts][self.listed.owner])[self.token]
        of_problem = torch.stack([self.place, self.problem_of_node]).unique(dim=1, return_inverse=True)[1]
        weighted = measured[self.token] * weights_within(of_problem, before)[:, None]
        rows: list[Row] = []
        for place in self.place.unique().tolist():
            nodes = (self.place == place).nonzero().flatten()
            kl, total_variation = (weighted[nodes].sum(0) / len(self.problem_of_node[nodes].unique())).tolist()
            kinds = dict.fromkeys(self.listed.kinds[token] for token in self.token[nodes].tolist())
            rows.append({"place": place, "kind": ", ".join(kinds), "kl": kl, "total_variation": total_variation})
        return rows
