"""Data-set rows → prompts: sources of problems, filtering, and the order in which a run uses them."""

from apo_lightning.data.arithmetic import ArithmeticSource
from apo_lightning.data.datamodule import PromptDataModule
from apo_lightning.data.files import HubDataset, ProblemSet
from apo_lightning.data.filtering import FilterReport
from apo_lightning.data.prompts import PromptTemplate, build_prompt, build_prompts
from apo_lightning.data.rows import Row
from apo_lightning.data.sources import DatasetSource, Problems, ProblemSource

__all__ = [
    "ArithmeticSource",
    "DatasetSource",
    "FilterReport",
    "HubDataset",
    "ProblemSet",
    "ProblemSource",
    "Problems",
    "PromptDataModule",
    "PromptTemplate",
    "Row",
    "build_prompt",
    "build_prompts",
]
