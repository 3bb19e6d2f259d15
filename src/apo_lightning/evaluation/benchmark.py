"""A benchmark: its problems, their prompt, the samples per problem and the reward."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from apo_lightning.common.identity import sha256_of
from apo_lightning.common.ranges import Count, check_ranges
from apo_lightning.contracts import Reward
from apo_lightning.data.files import HubDataset, ProblemSet
from apo_lightning.data.prompts import PLACEHOLDER, PromptTemplate, build_prompt, build_prompts, require_fitting
from apo_lightning.data.rows import Row, require_answers
from apo_lightning.data.sources import ProblemSource
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.records import DataCard
from apo_lightning.types import Prompt


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    r"""One benchmark. Its fields are the keys of `configs/benchmark/*.yaml`.

    Attributes:
        name: used in files, tables and sample seeds.
        path: a local `.jsonl` or `.parquet` with `problem` and `answer`; has priority over `hub` and `source`.
        hub: the hub data set that is read without a path.
        source: a task whose held-out problems are used without path and hub.
        num_problems: expected size of the whole set. Another size is an error, since scores on half a benchmark, or on
            one with duplicates, look plausible. None: not checked.
        limit: use only this many problems, the first ones; None: all. It does not change the samples of a problem.
        num_samples: n completions per problem; pass@k is estimated for every k ≤ n.
        max_prompt_tokens: a longer prompt is an error.
        max_completion_tokens: a longer completion is cut, and counted as truncated.
        instruction: the user message, which contains `{problem}`.
        system: the system message; None: none is passed.
        diversity: report 1 − Self-BLEU of each problem's samples.
        encoder: report their mean pairwise similarity under this sentence encoder: a hub id, a local folder or
            `package://<python package>/<folder>`; None: not reported.
        reward: verifies a completion.
    """

    name: str
    path: str | None = None
    hub: HubDataset | None = None
    source: ProblemSource | None = None
    num_problems: int | None = None
    limit: Count | None = None
    num_samples: Count
    max_prompt_tokens: Count
    max_completion_tokens: Count
    instruction: str
    system: str | None = None
    diversity: bool = False
    encoder: str | None = None
    reward: Reward

    def __post_init__(self) -> None:
        check_ranges(type(self), lambda name: getattr(self, name), f"benchmark.{self.name}.")
        if self.path is None and self.hub is None and self.source is None:
            raise ConfigError(f"benchmark {self.name} has no problems: give benchmark.{self.name}.path=file.jsonl")
        if (self.diversity or self.encoder) and self.num_samples < 2:
            raise ConfigError(
                f"benchmark.{self.name}.num_samples is 1: diversity is between samples of one problem, draw at least 2"
            )

    @property
    def max_model_len(self) -> int:
        """Longest prompt and completion together [tokens]."""
        return self.max_prompt_tokens + self.max_completion_tokens

    def check(self) -> None:
        """Check that a local file exists and its first record can be read; raises `ConfigError`."""
        if self._file is not None:
            self._file.check()

    def load(self) -> tuple[list[Row], DataCard]:
        """The problems to measure, and their origin.

        Raises:
            ConfigError: they cannot be read, their number is not `num_problems`, or one has no answer.
        """
        if self._file is not None:
            rows = self._file.rows(self.name)
        else:
            assert self.source is not None
            held_out = self.source.load().validation
            rows = held_out.get(self.name) or [row for rows in held_out.values() for row in rows]
        if self.num_problems is not None and len(rows) != self.num_problems:
            raise ConfigError(
                f"{self._origin} has {len(rows)} problems, but {self.name} has {self.num_problems}: give the right "
                f"file, or benchmark.{self.name}.num_problems={len(rows)} to measure this set"
            )
        require_answers(rows, self._origin)
        measured = rows[: self.limit]
        contents = ([r.id, r.problem, r.answer, *([] if r.system is None else [r.system])] for r in measured)
        sha256 = sha256_of(json.dumps(content).encode() for content in contents)
        card = DataCard(source=self._origin, sha256=sha256, num_problems=len(measured), num_available=len(rows))
        return measured, card

    def prompts(
        self, rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase, prompt_template: str | None
    ) -> list[Prompt]:
        """The prompts of the rows, in the model's template; raises `ConfigError` for one above `max_prompt_tokens`."""
        prompts = build_prompts(rows, tokenizer, self._template(prompt_template), source=self.name)
        require_fitting(prompts, self.max_prompt_tokens)
        return prompts

    def prompt_around(self, tokenizer: PreTrainedTokenizerBase, prompt_template: str | None) -> str:
        """The template of every prompt, with `{problem}` in place of the problem."""
        row = Row(id="", problem=PLACEHOLDER, answer="")
        return build_prompt(row, tokenizer, self._template(prompt_template), source=self.name).text

    def _template(self, prompt_template: str | None) -> PromptTemplate:
        return PromptTemplate(instruction=self.instruction, system=self.system, base_template=prompt_template)

    @property
    def _file(self) -> ProblemSet | None:
        has_file = self.path is not None or self.hub is not None
        return ProblemSet(path=self.path, hub=self.hub) if has_file else None

    @property
    def _origin(self) -> str:
        return f"{self.name}, held-out problems" if self._file is None else self._file.origin
