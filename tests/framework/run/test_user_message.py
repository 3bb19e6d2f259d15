"""Errors that a user can fix are one line; others keep their traceback."""

import sys
from pathlib import Path

import pytest
import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationKeyError

from apo_lightning.losses import GRPO
from apo_lightning.run.user_message import user_message


def test_a_full_disk_is_one_line_that_says_how_to_go_on():
    with pytest.raises(OSError, match="No space left") as caught:
        Path("/dev/full").write_text("x")
    assert user_message(caught.value) == (
        "cannot write: No space left on device; make room, then continue the run with resume=auto"
    )


@pytest.mark.parametrize("allocate", [lambda: torch.empty(2**56), lambda: bytearray(2**56)])
def test_memory_that_runs_out_is_one_line_with_what_takes_less(allocate):
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        allocate()
    line = user_message(caught.value)
    assert line is not None
    assert line.startswith("out of memory")
    remedy = "give a smaller tokens_per_microbatch, or model.gradient_checkpointing=true"
    assert line.endswith(f"{remedy}, then continue the run with resume=auto")
    assert "\n" not in line
    assert user_message(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")) is not None
    assert user_message(RuntimeError("a bug")) is None


def test_an_error_of_the_disk_that_no_room_mends_keeps_its_traceback(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        (tmp_path / "missing").read_text()
    assert user_message(caught.value) is None


class Forgotten(GRPO):
    floor: float = 0.5


@pytest.mark.parametrize(
    ("target", "remedy"),
    [
        (Forgotten, "write @dataclass above {}, else what it declares is no setting"),
        (
            GRPO,
            "give what {} takes, and nothing else, or, if your file names another class, write _self_ last in its "
            "defaults",
        ),
    ],
)
def test_a_setting_that_a_class_does_not_take_has_its_remedy(target, remedy):
    name = f"{target.__module__}.{target.__qualname__}"
    with pytest.raises(InstantiationException) as caught:
        instantiate({"algo": {"loss": {"_target_": name, "floor": 1.0}}})
    refused = "algo.loss: GRPO.__init__() got an unexpected keyword argument 'floor'"
    assert user_message(caught.value) == f"{refused}; {remedy.format(name)}"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            "own_loss_of_nobody.Loss",
            "there is no module own_loss_of_nobody in {} or on PYTHONPATH: start where it lies",
        ),
        ("broken.Loss", "the import of broken.Loss fails: SyntaxError: '(' was never closed ({}/broken.py:2)"),
        ("needy.Loss", "the import of needy.Loss fails: ModuleNotFoundError: No module named 'need' ({}/needy.py:1)"),
        ("plain.GentelPush", "plain has no GentelPush: the nearest is GentlePush"),
        ("plain.sub.Loss", "plain has no sub"),
        ("plain.GentlePush.sub", "plain.GentlePush.sub: type object 'GentlePush' has no attribute 'sub'"),
    ],
)
def test_a_target_that_cannot_be_imported_says_why(target, said, tmp_path, monkeypatch):
    for name, text in (("broken", "\nx = ("), ("needy", "import need"), ("plain", "class GentlePush: ...")):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InstantiationException) as caught:
        instantiate({"algo": {"loss": {"_target_": target}}})
    assert user_message(caught.value).startswith(f"algo.loss._target_: {said.format(tmp_path)}")


def test_a_module_is_no_target():
    with pytest.raises(InstantiationException) as caught:
        instantiate({"algo": {"loss": {"_target_": "apo_lightning.losses"}}})
    assert user_message(caught.value) == "algo.loss._target_ is no class or function: give the dotted name of one"


def test_a_name_in_an_interpolation_that_is_no_setting_is_one_line():
    with pytest.raises(InterpolationKeyError) as caught:
        OmegaConf.resolve(OmegaConf.create({"loss": {"scale": "${strength}"}}))
    said = "Interpolation key 'strength' not found: a configuration names it in ${…}, and no setting has that name"
    assert user_message(caught.value) == said


def test_a_key_that_an_option_reads_in_vain_names_the_group_that_lacks_it():
    cfg = OmegaConf.create({"data": {"name": "arithmetic"}, "reward": {"puzzle": "${data.puzzle}"}})
    with pytest.raises(InterpolationKeyError) as caught:
        OmegaConf.resolve(cfg)
    said = "Interpolation key 'data.puzzle' not found: an option reads it that the chosen data= does not go with; "
    assert user_message(caught.value) == f"{said}choose another of the two"
