"""Oracle coverage: how often the next token of a worked solution is among the model's K most likely ones."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from jaxtyping import Bool
from scipy.stats import binomtest
from torch import Tensor

from apo_lab.coverage.ratio import ratio_estimate
from apo_lightning.common.hashing import hash64
from apo_lightning.common.identity import sha256_of
from apo_lightning.common.ranges import Checked, Within
from apo_lightning.data import HubDataset, ProblemSet, PromptTemplate, Row, build_prompts
from apo_lightning.data.filtering import normalised_problem
from apo_lightning.data.prompts import PLACEHOLDER
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.progress import Progress
from apo_lightning.evaluation.records import DataCard, Estimate, ModelCard
from apo_lightning.evaluation.scoring import microbatches, pack, sequence_of_each_token
from apo_lightning.model.fingerprint import versions
from apo_lightning.model.packing import PackedSequences
from apo_lightning.model.policy import Policy
from apo_report.coverage import CoverageResult


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvedProblems:
    """The problems whose solutions are scored, each with a solution, and how many were left out."""

    rows: Sequence[Row]
    num_available: int
    """Number of problems in the whole set."""
    num_without_solution: int


@dataclass(frozen=True, kw_only=True)
class OracleCoverage(Checked):
    """Teacher-forced recall of worked solutions. Its fields are the keys of `configs/coverage/*.yaml`.

        recall@K = Σ_problems #{t : rank of y*_t under π(· | x, y*_<t) < K} / Σ_problems |y*|

    A rank counts the tokens with a larger logit, and those with an equal logit and a lower id. Every token of the
    solution counts once, its first included; neither prompt tokens nor an end of turn do. The solution is tokenised
    on its own, behind the prompt that an evaluation would sample from.

    Source: *Anchored Policy Optimization*, the table of the oracle coverage analysis and the section around it.

    The recall of tokens says little about whole solutions, so the same pass counts the solutions with every token
    among the K most likely ones.

    Departure: the paper gives neither its prompt nor which 1,000 problems of MATH it drew; here a hash of the problem
    chooses, so that the choice depends neither on the order of a file nor on a seed.

    Attributes:
        name: of the preset, and of the problem set.
        path: a local `.jsonl` or `.parquet` file of problems with a `solution`; takes precedence over the hub.
        limit: problems to score; None: all.
        anchor_sizes: the K to report.
        max_tokens: a longer prompt and solution together are skipped, and counted [tokens].
        tokens_per_microbatch: a shared prompt counted once; affects memory and speed only.

    Raises:
        ConfigError: a limit or K that is not positive, or no K at all.
    """

    section: ClassVar[str] = "coverage."

    name: str
    path: str | None = None
    hub: HubDataset | None = None
    limit: Annotated[int | None, Within("[1, inf)")] = None
    anchor_sizes: Sequence[int] = (1, 4, 8, 16)
    max_tokens: Annotated[int, Within("[1, inf)")] = 4096
    tokens_per_microbatch: Annotated[int, Within("[1, inf)")] = 4096
    instruction: str = "{problem}"
    system: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.anchor_sizes or min(self.anchor_sizes) < 1:
            raise ConfigError(
                f"coverage.anchor_sizes is {list(self.anchor_sizes)}: give one or more K, each at least 1"
            )

    def check(self) -> None:
        """Read the first record of a local file; raises `ConfigError` where that fails."""
        ProblemSet(path=self.path, hub=self.hub).check()

    def check_model(self, name: str, vocab_size: int, max_position_embeddings: int | None) -> None:
        """Check that a model can be measured, before its weights are loaded.

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
        self, policy: Policy, problems: SolvedProblems, prompt_template: str | None, model: ModelCard
    ) -> CoverageResult:
        """Run every solution behind its prompt, once; leaves the policy in evaluation mode.

        Without a `prompt_template` of the model's own, as in `PolicySpec`, it is its tokenizer's chat template.

        Raises:
            ConfigError: every solution is too long, or there is no template.
        """
        template = PromptTemplate(instruction=self.instruction, system=self.system, base_template=prompt_template)
        rows = [Row(id="", problem=PLACEHOLDER, answer=""), *problems.rows]
        placeholder, *prompts = build_prompts(rows, policy.tokenizer, template, source=self.name)
        solutions = [policy.tokenizer.encode(solution_of(row), add_special_tokens=False) for row in problems.rows]
        short = [i for i in range(len(prompts)) if len(prompts[i].token_ids) + len(solutions[i]) <= self.max_tokens]
        if not short:
            raise ConfigError(
                f"coverage.max_tokens is {self.max_tokens} and none of {len(prompts)} problems with their solutions "
                "is that short: raise it"
            )
        sequences = pack([prompts[i] for i in short], [solutions[i] for i in short])
        sizes, owners = sorted(set(self.anchor_sizes)), sequence_of_each_token(sequences)
        is_hit = token_hits(policy, sequences, sizes, self.tokens_per_microbatch)
        lengths = torch.tensor([len(solution) for solution in sequences.completions])
        rows = [problems.rows[i] for i in short]
        counts = torch.zeros(len(rows), len(sizes), dtype=torch.long).index_add_(0, owners, is_hit.long())
        return CoverageResult(
            preset=self.name,
            model=model,
            data=DataCard(
                source=ProblemSet(path=self.path, hub=self.hub).origin,
                sha256=_digest(rows),
                num_problems=len(rows),
                num_available=problems.num_available,
            ),
            prompt=placeholder.text,
            num_tokens=len(owners),
            recall={k: ratio_estimate(counts[:, i], lengths) for i, k in enumerate(sizes)},
            reachable={k: _reachable(counts[:, i] == lengths, rows) for i, k in enumerate(sizes)},
            versions=versions(),
            num_without_solution=problems.num_without_solution,
            num_too_long=len(prompts) - len(short),
        )


def solved_problems(rows: Sequence[Row], limit: int | None, *, where: str) -> SolvedProblems:
    """The first `limit` problems that have a solution, ordered by a hash of the problem's text.

    Raises:
        ConfigError: none has a solution; the message names `where` the rows come from.
    """
    solved = [row for row in rows if solution_of(row)]
    if not solved:
        raise ConfigError(
            f"none of the {len(rows)} problems of {where} has a solution: give a file with worked solutions in a "
            "`solution` column"
        )
    return SolvedProblems(
        rows=sorted(solved, key=_rank)[:limit], num_available=len(rows), num_without_solution=len(rows) - len(solved)
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
        # The exact binomial interval of Clopper and Pearson 1934.
        interval = binomtest(int(is_inside.sum()), len(rows)).proportion_ci(0.95, method="exact")
        return Estimate(value=float(is_inside.double().mean()), low=float(interval.low), high=float(interval.high))
    owners = torch.tensor([place[problem] for problem in problems])
    return ratio_estimate(torch.bincount(owners, weights=is_inside.double()), torch.bincount(owners))


def _digest(rows: Sequence[Row]) -> str:
    """SHA-256 of problems and solutions; ids are left out, since they are line numbers where a file brings none."""
    return sha256_of(json.dumps([row.problem, solution_of(row)]).encode() for row in rows)


@torch.no_grad()
def token_hits(
    policy: Policy, sequences: PackedSequences, anchor_sizes: Sequence[int], tokens_per_microbatch: int
) -> Bool[Tensor, "tokens sizes"]:
    """Whether each token of the completions is among the policy's K most likely ones, for each K; prints progress.

    Raises:
        ConfigError: a K exceeds the vocabulary.
    """
    num_tokens = sum(map(len, sequences.completions))
    hits = torch.zeros(num_tokens, len(anchor_sizes), dtype=torch.bool)
    done = 0
    progress = Progress("", "solution tokens")
    for microbatch in microbatches(sequences, [policy], tokens_per_microbatch):
        # Ranks do not depend on the temperature, only on how its division rounds: at 1 it does not.
        top = policy.as_reference(microbatch, max(anchor_sizes), temperature=1.0).anchor_ids
        assert top is not None
        is_target = top == microbatch.targets.unsqueeze(1)
        found = torch.stack([is_target[:, :k].any(1) for k in anchor_sizes], dim=1)
        hits[microbatch.token_index.cpu()] = found.cpu()
        done += len(found)
        progress.advance(done, num_tokens, num_tokens=done)
    return hits
