"""The paper's cells: what they are, whether they are done, and who works on them."""

from dataclasses import replace
from pathlib import Path

import pytest

from apo_lightning.errors import ConfigError
from apo_report.paper.cells import PaperCell, identity, list_cells
from apo_report.paper.work import RECORD, _lock, _record, owner_of, state_of, work_off
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


@pytest.fixture
def run(tmp_path) -> PaperCell:
    return PaperCell(name="train/x", command="train", overrides=("model=tiny",), folder=tmp_path / "train" / "x")


@pytest.fixture
def measured(tmp_path, run) -> PaperCell:
    folder = tmp_path / "evaluate" / "x"
    return PaperCell(name="evaluate/x", command="evaluate", overrides=("model=tiny",), folder=folder, needs=run)


def finish(cell: PaperCell, *, is_finished: bool = True) -> None:
    cell.folder.mkdir(parents=True, exist_ok=True)
    _record(cell, is_finished=is_finished)


@pytest.fixture
def executed(monkeypatch) -> list[str]:
    """Names of cells that a stand-in for the child process has executed; it fails for those of a name with "bad"."""
    names = []

    def execute(cell, lock):
        names.append(cell.name)
        finish(cell, is_finished="bad" not in cell.name)
        return "bad" not in cell.name

    monkeypatch.setattr("apo_report.paper.work._execute", execute)
    return names


def test_a_cell_is_missing_then_begun_then_running_then_done(run):
    assert state_of(run) == "missing"
    finish(run, is_finished=False)
    assert state_of(run) == "begun"
    with _lock(run) as lock:
        assert lock is not None
        lock.write("process 7")
        lock.flush()
        assert state_of(run) == "running"
        assert owner_of(run) == "process 7"
        with _lock(run) as second:
            assert second is None
    assert state_of(run) == "begun"
    finish(run)
    assert state_of(run) == "done"


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_cell_of_another_configuration_and_what_reads_its_weights_are_stale_and_refused(run, measured, is_finished):
    finish(run, is_finished=is_finished)
    finish(measured)
    other = replace(run, overrides=("model=tiny", "seed=2"))
    assert state_of(other) == state_of(replace(measured, needs=other)) == "stale"
    with pytest.raises(ConfigError, match="1 of 1 cells were made with another configuration"):
        work_off([other], None)


def test_a_broken_record_names_the_folder_to_move(run):
    finish(run)
    (run.folder / RECORD).write_text("{")
    with pytest.raises(ConfigError, match="is no record of a cell"):
        state_of(run)


def test_a_cell_waits_for_its_run_a_failed_one_is_not_tried_again_and_the_limit_counts_what_is_finished(
    tmp_path, run, measured, executed
):
    bad = replace(run, name="bad", folder=tmp_path / "bad", overrides=("model=tiny", "seed=3"))
    waits = replace(measured, name="waits", folder=tmp_path / "waits", needs=bad)
    cells = [bad, waits, measured, run]
    with pytest.raises(ConfigError, match=f"1 of 4 cells failed: {bad.folder}/output.txt"):
        work_off(cells, 1)
    assert executed == ["bad", "train/x"]
    with pytest.raises(ConfigError, match="1 of 4 cells failed"):
        work_off(cells, None)
    assert executed == ["bad", "train/x", "bad", "evaluate/x"]


def test_a_cell_of_another_process_is_left_to_it(run, measured, executed):
    finish(run, is_finished=False)
    with _lock(run):
        work_off([run, measured], None)
    assert executed == []


def test_several_tasks_on_the_same_gpus_are_refused(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    with pytest.raises(ConfigError, match="srun started 8 tasks"):
        work_off([], None)
