"""Oracle coverage: how often the next token of a worked solution is among the model's K most likely ones."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from apo_lab.coverage.ratio import ratio_estimate
from apo_lab.coverage.records import CoverageResult
from apo_lab.statistics.reachability import NEVER, clopper_pearson, survival
from apo_lightning.common.hashing import hash64
from apo_lightning.data import HubDataset, ProblemSet, PromptTemplate, Row, build_prompt
from apo_lightning.data.filtering import normalised_problem
from apo_lightning.data.prompts import PLACEHOLDER
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.records import DataCard, Estimate, ModelCard
from apo_lightning.evaluation.scoring import microbatches, pack, sequence_of_each_token
from apo_lightning.model.fingerprint import versions
from apo_lightning.model.packing import PackedSequences
from apo_lightning.model.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvedProblems:
    """The problems whose solutions are scored, and how many were left out."""

    rows: Sequence[Row]
    """Each with a solution; ordered by a hash of the problem's text, whatever the order of the file."""
    num_available: int
    """Number of problems in the whole set."""
    num_without_solution: int
    """Problems without a worked solution, which cannot be scored."""


INSIDE_LENGTHS = (4, 16, 64, 256, 1024)
"""Lengths of a solution's beginning for which `Coverage.inside` is reported [tokens]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """Which tokens of some completions are among a policy's K most likely ones, for each K."""

    counts: Int[Tensor, "completions sizes"]
    """Number of such tokens."""
    exits: Int[Tensor, "completions sizes"]
    """Place, from 1, of the first token that is none; `reachability.NEVER` where all are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The recall of worked solutions, and the problems it was measured on."""

    recall: Mapping[int, Estimate]
    """K → share of solution tokens y*_t with y*_t ∈ TopK(π(· | x, y*_<t)), in [0, 1]; K ascending."""
    reachable: Mapping[int, Estimate]
    """K → share of solutions all of whose tokens are."""
    mean_exits: Mapping[int, float]
    """K → mean number of tokens a solution that are not."""
    inside: Mapping[int, tuple[float, ...]]
    """K → share of solutions whose first `INSIDE_LENGTHS` tokens all are."""
    rows: Sequence[Row]
    """The problems whose solutions were scored."""
    num_tokens: int
    """Number of tokens in the solutions of `rows`."""
    num_too_long: int
    """Problems that were skipped: more than `max_tokens` with their prompt."""


@dataclass(frozen=True, kw_only=True)
class OracleCoverage:
    """Teacher-forced recall of worked solutions. Its fields are the keys of `configs/coverage/*.yaml`.

        recall@K = Σ_problems #{t : rank of y*_t under π(· | x, y*_<t) < K} / Σ_problems |y*|

    A rank counts the tokens with a larger logit, and those with an equal logit and a lower id. Every token of the
    solution counts once, its first included; neither prompt tokens nor an end of turn do. The solution is tokenised
    on its own, behind the prompt that an evaluation would sample from.

    Source: *Anchored Policy Optimization*, the table of the oracle coverage analysis and the section around it.

    The recall of tokens says little about whole solutions, so the same pass counts the solutions with every token
    among the K most likely ones, and their places of first exit.

    Departure: the paper gives neither its prompt nor which 1,000 problems of MATH it drew; here a hash of the problem
    chooses, so that the choice depends neither on the order of a file nor on a seed.

    Attributes:
        name: of the preset, and of the problem set.
        path: a local `.jsonl` or `.parquet` file of problems with a `solution`; takes precedence over the hub.
        hub: the hub data set that is read when there is no path.
        limit: problems to score; None: all.
        anchor_sizes: the K to report.
        max_tokens: a longer prompt and solution together are skipped, and counted [tokens].
        tokens_per_microbatch: tokens of a micro-batch, a shared prompt counted once; affects memory and speed only.
        instruction: as in `PromptTemplate`.
        system: as in `PromptTemplate`.

    Raises:
        ConfigError: a limit or K that is not positive, or no K at all.
    """

    name: str
    path: str | None = None
    hub: HubDataset | None = None
    limit: int | None = None
    anchor_sizes: Sequence[int] = (1, 4, 8, 16)
    max_tokens: int = 4096
    tokens_per_microbatch: int = 4096
    instruction: str = "{problem}"
    system: str | None = None

    def __post_init__(self) -> None:
        for name in ("limit", "max_tokens", "tokens_per_microbatch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"coverage.{name} is {value}: it must be at least 1")
        if not self.anchor_sizes or min(self.anchor_sizes) < 1:
            raise ConfigError(
                f"coverage.anchor_sizes is {list(self.anchor_sizes)}: give one or more K, each at least 1"
            )

    def check(self) -> None:
        """Read the first record of a local file; raises `ConfigError` where that fails."""
        ProblemSet(path=self.path, hub=self.hub).check()

    def check_model(self, name: str, vocab_size: int, max_position_embeddings: int | None) -> None:
        """Check that a model can be measured, before its weights are loaded.

        Args:
            name: of the model, for the message.
            vocab_size: rows of its head.
            max_position_embeddings: the longest sequence it reads; None: unknown.

        Raises:
            ConfigError: it has fewer tokens than the largest K, or reads fewer than `max_tokens`.
        """
        if max(self.anchor_sizes) > vocab_size:
            raise ConfigError(
                f"coverage.anchor_sizes has {max(self.anchor_sizes)} and the vocabulary of {name} has {vocab_size} "
                "tokens: take it out"
            )
        if max_position_embeddings is not None and self.max_tokens > max_position_embeddings:
            raise ConfigError(
                f"coverage.max_tokens is {self.max_tokens} and {name} reads {max_position_embeddings} tokens: "
                f"lower it to {max_position_embeddings} or less"
            )

    def load(self) -> SolvedProblems:
        """Read the problems and choose `limit` of them.

        Raises:
            ConfigError: the data cannot be read, a row is malformed, or none has a solution.
        """
        rows = ProblemSet(path=self.path, hub=self.hub).rows(self.name)
        return solved_problems(rows, self.limit, where=self.path or self.name)

    def measure(
        self,
        policy: Policy,
        problems: SolvedProblems,
        prompt_template: str | None,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Coverage:
        """Run every solution behind its prompt, once.

        Args:
            policy: left in evaluation mode.
            problems: from `load`, or any others.
            prompt_template: the model's own, as in `PolicySpec`; None: its tokenizer's chat template.
            on_progress: called after each micro-batch with the solution tokens done, and all of them.

        Raises:
            ConfigError: every solution is too long, or there is no template.
        """
        template = self._template(prompt_template)
        prompts = [build_prompt(row, policy.tokenizer, template, source=self.name) for row in problems.rows]
        solutions = [policy.tokenizer.encode(solution_of(row), add_special_tokens=False) for row in problems.rows]
        short = [i for i in range(len(prompts)) if len(prompts[i].token_ids) + len(solutions[i]) <= self.max_tokens]
        if not short:
            raise ConfigError(
                f"coverage.max_tokens is {self.max_tokens} and none of {len(prompts)} problems with their solutions "
                "is that short: raise it"
            )
        sequences = pack([prompts[i] for i in short], [solutions[i] for i in short])
        anchor_sizes = sorted(set(self.anchor_sizes))
        hits = count_hits(policy, sequences, anchor_sizes, self.tokens_per_microbatch, on_progress)
        lengths = torch.tensor([len(solution) for solution in sequences.completions])
        rows = [problems.rows[i] for i in short]
        return Coverage(
            recall={k: ratio_estimate(hits.counts[:, i], lengths) for i, k in enumerate(anchor_sizes)},
            reachable={k: _reachable(hits.exits[:, i] == NEVER, rows) for i, k in enumerate(anchor_sizes)},
            mean_exits={k: float((lengths - hits.counts[:, i]).double().mean()) for i, k in enumerate(anchor_sizes)},
            inside={k: tuple(survival(hits.exits[:, i], INSIDE_LENGTHS)) for i, k in enumerate(anchor_sizes)},
            rows=rows,
            num_tokens=int(lengths.sum()),
            num_too_long=len(prompts) - len(short),
        )

    def result(
        self,
        policy: Policy,
        problems: SolvedProblems,
        prompt_template: str | None,
        model: ModelCard,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> CoverageResult:
        """Run `measure` and record its result with every setting that decided it."""
        coverage = self.measure(policy, problems, prompt_template, on_progress)
        placeholder = Row(id="", problem=PLACEHOLDER, answer="")
        prompt = build_prompt(placeholder, policy.tokenizer, self._template(prompt_template), source=self.name)
        data = DataCard(
            source=self._origin,
            sha256=_digest(coverage.rows),
            num_problems=len(coverage.rows),
            num_available=problems.num_available,
        )
        return CoverageResult(
            preset=self.name,
            model=model,
            data=data,
            prompt=prompt.text,
            num_tokens=coverage.num_tokens,
            recall=coverage.recall,
            reachable=coverage.reachable,
            mean_exits=coverage.mean_exits,
            inside=coverage.inside,
            inside_lengths=INSIDE_LENGTHS,
            versions=versions(),
            num_without_solution=problems.num_without_solution,
            num_too_long=coverage.num_too_long,
        )

    def _template(self, prompt_template: str | None) -> PromptTemplate:
        return PromptTemplate(instruction=self.instruction, system=self.system, base_template=prompt_template)

    @property
    def _origin(self) -> str:
        if self.path is not None:
            return Path(self.path).name
        assert self.hub is not None
        return f"{self.hub.hub_id} ({self.hub.config or 'default'}, {self.hub.split})"


def solved_problems(rows: Sequence[Row], limit: int | None, *, where: str) -> SolvedProblems:
    """The first `limit` problems that have a solution, ordered by a hash of the problem's text.

    Args:
        rows: of the whole set, in any order.
        limit: how many; None: all.
        where: they come from, for the message.

    Raises:
        ConfigError: none has a solution.
    """
    solved = [row for row in rows if solution_of(row)]
    if not solved:
        raise ConfigError(
            f"none of the {len(rows)} problems of {where} has a solution: give a file with worked solutions in a "
            "`solution` column"
        )
    return SolvedProblems(
        rows=sorted(solved, key=_rank)[:limit],
        num_available=len(rows),
        num_without_solution=len(rows) - len(solved),
    )


def _rank(row: Row) -> tuple[bytes, str]:
    """A set can hold a problem twice, with two solutions."""
    return hash64(normalised_problem(row.problem)), solution_of(row)


def solution_of(row: Row) -> str:
    """The worked solution without the space around it; empty where there is none."""
    return (row.solution or "").strip()


def _reachable(is_inside: Bool[Tensor, "solutions"], rows: Sequence[Row]) -> Estimate:
    """The share of solutions, with an interval over problems: solutions of one problem are not independent."""
    problems = [normalised_problem(row.problem) for row in rows]
    place = {problem: i for i, problem in enumerate(dict.fromkeys(problems))}
    if len(place) == len(rows):
        interval = clopper_pearson(int(is_inside.sum()), len(rows))
        return Estimate(value=interval.mean, low=interval.low, high=interval.high)
    owners = torch.tensor([place[problem] for problem in problems])
    reached = torch.bincount(owners, weights=is_inside.double(), minlength=len(place))
    return ratio_estimate(reached, torch.bincount(owners, minlength=len(place)))


def _digest(rows: Sequence[Row]) -> str:
    """SHA-256 of problems and solutions; ids are left out, since they are line numbers where a file brings none."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps([row.problem, solution_of(row)]).encode())
    return digest.hexdigest()


@torch.no_grad()
def count_hits(
    policy: Policy,
    sequences: PackedSequences,
    anchor_sizes: Sequence[int],
    tokens_per_microbatch: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Hits:
    """Which tokens of each completion are among the policy's K most likely ones, for each K.

    Args:
        policy: left in evaluation mode.
        sequences: prompts and completions.
        anchor_sizes: the K.
        tokens_per_microbatch: tokens of a micro-batch, a shared prompt counted once.
        on_progress: called after each micro-batch with the response tokens done, and all of them.

    Raises:
        ConfigError: a K exceeds the vocabulary.
    """
    owners = sequence_of_each_token(sequences)
    starts = torch.tensor(sequences.starts)
    counts = torch.zeros(len(sequences.completions), len(anchor_sizes), dtype=torch.long)
    exits = torch.full_like(counts, NEVER)
    done = 0
    for microbatch in microbatches(sequences, [policy], tokens_per_microbatch):
        # Ranks do not depend on the temperature, only on how its division rounds: at 1 it does not.
        top = policy.as_reference(microbatch, max(anchor_sizes), temperature=1.0).anchor_ids
        assert top is not None
        is_target = top == microbatch.targets.unsqueeze(1)
        is_hit = torch.stack([is_target[:, :k].any(1) for k in anchor_sizes], dim=1).cpu()
        index = microbatch.token_index.cpu()
        counts.index_add_(0, owners[index], is_hit.long())
        places = (index - starts[owners[index]] + 1)[:, None].masked_fill(is_hit, NEVER)
        exits.scatter_reduce_(0, owners[index][:, None].expand_as(places), places, "amin")
        done += len(microbatch.targets)
        on_progress(done, len(owners))
    return Hits(counts=counts, exits=exits)
