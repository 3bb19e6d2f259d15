"""Problems of a generator of the package `reasoning-gym`, scored by the generator itself."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from apo_lightning.data import DatasetSource, Row
from apo_lightning.errors import ConfigError, in_brief


@dataclass(frozen=True, kw_only=True)
class ReasoningGymSource(DatasetSource):
    """The problems of one generator; `reward=reasoning_gym` scores them.

    Attributes:
        generator: its name, such as `leg_counting`.
        size: number of problems that are generated; repeated ones are dropped.
        seed: of the generator; independent of the run's seed.
        options: arguments of the generator's configuration, such as `{max_animals: 5}`.

    The other attributes are those of `DatasetSource`, without `path` and `hub`.
    """

    path: None = field(default=None, init=False)
    hub: None = field(default=None, init=False)
    generator: str
    size: int
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raise `ConfigError` if the package is missing, or refuses the generator's name or options."""
        self._entries(1)

    def rows(self) -> list[Row]:
        """All problems; each entry of the generator is a row's columns."""
        return [
            Row(id=f"{self.generator}-{i}", problem=str(entry["question"]), answer=str(entry["answer"]), columns=entry)
            for i, entry in enumerate(self._entries(self.size))
        ]

    def _entries(self, size: int) -> Sequence[Mapping[str, Any]]:
        try:
            create = importlib.import_module("reasoning_gym").create_dataset
            return list(create(self.generator, size=size, seed=self.seed, **self.options))
        except ImportError as error:
            raise ConfigError(f"data=reasoning_gym needs the package ({error}): pip install reasoning-gym") from error
        # Generators check their options with assert, and by exceptions of any type.
        except Exception as error:
            raise ConfigError(
                f"reasoning-gym cannot make data.generator={self.generator} with data.options={dict(self.options)}: "
                f"{type(error).__name__}: {in_brief(error)}"
            ) from error


def generator_score(
    completions: Sequence[str], answer: Sequence[Any], question: Sequence[str], metadata: Sequence[Any], **_: Any
) -> list[float]:
    """The score in [0, 1] that the generator gives the answer of each completion, for `CallableReward` in text form.

    The answer is the content of the last `<answer>…</answer>`, or the whole completion where there is none.
    """
    gym, utils = importlib.import_module("reasoning_gym"), importlib.import_module("reasoning_gym.utils")
    scores = []
    for text, *entry in zip(completions, question, answer, metadata, strict=True):
        fields: dict[str, Any] = dict(zip(("question", "answer", "metadata"), entry, strict=True))
        given = utils.extract_answer(text)
        score = gym.get_score_answer_fn(fields["metadata"]["source_dataset"])
        scores.append(float(score(text.strip() if given is None else given, fields)))
    return scores
