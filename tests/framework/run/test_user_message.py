"""Errors that a user can fix are one line; others keep their traceback."""

import errno
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationKeyError
from safetensors import SafetensorError

from apo_lightning.common.files import naming
from apo_lightning.common.formatting import flatten
from apo_lightning.losses import GRPO
from apo_lightning.run import prepare
from apo_lightning.run.user_message import user_message
from composing import composed


def raised(call) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever Hydra makes of it
        call()
    return caught.value


def test_a_full_disk_is_one_line_that_says_how_to_go_on():
    said = "cannot write a file of the run: No space left on device; make room, then continue the run with resume=auto"
    assert user_message(raised(lambda: Path("/dev/full").write_text("x"))) == said
    assert user_message(SafetensorError("I/O error: No space left on device (os error 28)")) == said
    others = "give this user the right to, or choose another folder, then continue the run with resume=auto"
    reading = user_message(PermissionError(errno.EACCES, "denied", "/d.jsonl"))
    assert reading == f"cannot read or write /d.jsonl: Permission denied; {others}"


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY])
def test_whatever_the_system_refuses_is_one_line_with_the_file(number, tmp_path):
    said = f"cannot read or write {tmp_path}: {os.strerror(number)}; mend that, then continue the run with resume=auto"
    assert user_message(OSError(number, "of the system", str(tmp_path))) == said

    def from_rust():
        with naming(tmp_path):
            raise SafetensorError(f"I/O error: of the system (os error {number})")

    named = raised(from_rust)
    assert isinstance(named, OSError)
    assert (named.errno, named.filename) == (number, str(tmp_path))


@pytest.mark.parametrize("allocate", [lambda: torch.empty(2**56), lambda: bytearray(2**56)])
def test_memory_that_runs_out_is_one_line_with_what_takes_less(allocate):
    line = user_message(raised(allocate))
    assert line is not None
    assert line.startswith("out of memory")
    remedy = "give a smaller tokens_per_microbatch, or model.gradient_checkpointing=true"
    assert line.endswith(f"{remedy}, then continue the run with resume=auto")
    assert "\n" not in line
    assert user_message(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")) is not None


def test_bugs_of_ours_keep_their_traceback_and_those_of_own_code_are_one_line(tmp_path):
    assert user_message(RuntimeError("a bug")) is None
    assert user_message(raised(lambda: flatten(3))) is None
    assert "in raised: FileNotFoundError" in user_message(raised((tmp_path / "missing").read_text))
    inside = raised(lambda: instantiate({"_target_": "rewarding.even_start", "completions": [1]}))
    assert isinstance(inside, InstantiationException)
    assert re.search(r"rewarding\.py:\d+, in \w+: ", user_message(inside))


class Forgotten(GRPO):
    floor: float = 0.5


@pytest.mark.parametrize("target", [Forgotten, GRPO])
def test_a_setting_that_a_class_does_not_take_has_its_remedy(target):
    name = f"{target.__module__}.{target.__qualname__}"
    line = user_message(raised(lambda: instantiate({"algo": {"loss": {"_target_": name, "floor": 1.0}}})))
    refused = (
        f"algo.loss: GRPO.__init__() got an unexpected keyword argument 'floor'; give what {name} takes, and nothing "
    )
    assert line is not None
    assert line.startswith(refused)
    assert "_self_ last" in line
    assert "@dataclass" in line


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("own_loss_of_nobody.Loss", "there is no module own_loss_of_nobody"),
        ("broken.Loss", "SyntaxError: '(' was never closed (broken.py, line 2)"),
        ("needy.Loss", "No module named 'need'"),
        ("plain.GentelPush", "plain.py has no GentelPush"),
        ("apo_lightning.losses", "Expected a callable target"),
    ],
)
def test_a_target_that_cannot_be_imported_says_why(target, said, tmp_path, monkeypatch):
    for name, text in (("broken", "\nx = ("), ("needy", "import need"), ("plain", "class GentlePush: ...")):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    line = user_message(raised(lambda: instantiate({"algo": {"loss": {"_target_": target}}})))
    assert line is not None
    assert line.startswith("algo.loss")
    assert said in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ("experiment=paper/sensitivity_pull_0.0", "~data.validation", "algo=grpo"),
            ("algo.loss: ", "GRPO", "'pull_coef'"),
        ),
        (("~engine.sequences_per_batch",), ("engine: ", "TransformersEngine", "'sequences_per_batch'")),
        (("reward=callable", "reward.function._target_=rewarding.nobody"), ("reward.function._target_", "nobody")),
    ],
)
def test_a_node_that_does_not_fit_its_class_is_one_line(overrides, words):
    cfg = composed("model=tiny", *overrides, "engine=transformers", "trainer=cpu", "data=arithmetic", "callbacks=none")
    line = user_message(raised(lambda: prepare(cfg)))
    assert line is not None
    assert "\n" not in line
    assert all(word in line for word in words)


def test_a_key_that_an_option_reads_in_vain_is_named():
    cfg = OmegaConf.create({"data": {"name": "arithmetic"}, "reward": {"puzzle": "${data.puzzle}"}})
    error = raised(lambda: OmegaConf.resolve(cfg))
    assert isinstance(error, InterpolationKeyError)
    said = "data.puzzle: the chosen data= has no such key, and another option reads it; choose another of the two"
    assert user_message(error) == said
