from dataclasses import replace
from pathlib import Path

import pytest

from apo_lab.paper.cells import PaperCell, identity, list_cells
from apo_lightning.errors import ConfigError
from composing import PAPER, composed


def cells(*overrides: str) -> list[PaperCell]:
    return list_cells(composed(*overrides, config_name="paper"))


def train(*overrides: str, folder: Path = Path("x")) -> PaperCell:
    return PaperCell(name="train/x", command="train", overrides=("model=tiny", *overrides), folder=folder)


def test_the_papers_cells_are_all_its_runs_and_what_is_measured_of_them():
    found = cells("seeds=[1,2]")
    runs = [cell for cell in found if cell.command == "train"]
    # 19 runs and their evaluations, two for distributional health, for each seed; three models, one coverage.
    assert len(found) == 2 * (19 + 19 + 2) + 3 + 1
    assert {cell.name for cell in runs} == {f"train/paper/{run}/seed_{seed}" for run in PAPER for seed in (1, 2)}
    assert {cell.name for cell in found if cell.needs is None and cell.command != "train"} == {
        "coverage/qwen_math7b",
        *(f"evaluate/base_{model}" for model in ("qwen7b", "qwen_math7b", "llama3b")),
    }
    assert [cell.name for cell in found].index("train/paper/qwen7b_grpo/seed_2") > max(
        place for place, cell in enumerate(found) if cell.name.endswith("seed_1")
    )


def test_an_evaluation_reads_its_own_run_and_every_cell_has_a_folder_of_its_own():
    found = cells("output_dir=here")
    assert all(cell.needs.name == f"train/{cell.name.partition('/')[2]}" for cell in found if cell.needs)
    assert [cell.folder for cell in found] == [Path("here") / cell.name for cell in found]
    assert len({cell.folder for cell in found}) == len(found)
    one = next(cell for cell in found if cell.name == "evaluate/paper/qwen7b_apo/seed_1")
    assert one.arguments == [
        "evaluate",
        "benchmark=paper",
        "trainer=fsdp8",
        "output_dir=here/evaluate/paper/qwen7b_apo/seed_1",
        "run=here/train/paper/qwen7b_apo/seed_1",
    ]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("experiments=[paper/nothing*]", "experiments has paper/nothing*, which matches none of"),
        ("bases=[gpt]", "bases has gpt, which is none of"),
        ("distribution_of=[paper/gpt]", "distribution_of has paper/gpt, which is none of"),
        ("seeds=[]", "seeds is []"),
    ],
)
def test_what_does_not_exist_is_refused(override, said):
    with pytest.raises(ConfigError) as error:
        cells(override)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("override", "matters"),
    [
        ("seed=2", True),
        ("trainer.max_steps=7", True),
        ("algo.loss.clip_eps=0.3", True),
        ("data.max_operand=7", True),
        ("engine=transformers", True),
        ("trainer=ddp_cpu2", False),
        ("tokens_per_microbatch=64", False),
        ("callbacks=none", False),
        ("checkpoint.save_every=1", False),
        ("model.gradient_checkpointing=true", False),
    ],
)
def test_the_hash_of_a_configuration_changes_with_what_decides_the_result(override, matters):
    # `trainer=ddp_cpu2` brings its own number of steps.
    steps = () if "max_steps" in override else ("trainer.max_steps=3",)
    before, after = train("trainer.max_steps=3"), train(override, *steps)
    assert (identity(before) != identity(after)) == matters
    assert identity(before) == identity(replace(before, folder=Path("elsewhere")))


def test_an_evaluation_depends_on_the_configuration_of_its_run():
    measured = PaperCell(name="e", command="evaluate", overrides=("model=tiny",), folder=Path("e"), needs=train())
    assert identity(measured) != identity(replace(measured, needs=train("seed=2")))
