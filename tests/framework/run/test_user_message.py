"""Errors that a user can fix are one line; others keep their traceback."""

from pathlib import Path

import pytest
from hydra.errors import InstantiationException
from hydra.utils import instantiate

from apo_lightning.losses import GRPO
from apo_lightning.run.user_message import user_message


def test_a_full_disk_is_one_line_that_says_how_to_go_on():
    with pytest.raises(OSError, match="No space left") as caught:
        Path("/dev/full").write_text("x")
    assert user_message(caught.value) == (
        "cannot write: No space left on device; make room, then continue the run with resume=auto"
    )


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
        (GRPO, "give what {} takes, and nothing else"),
    ],
)
def test_a_setting_that_a_class_does_not_take_has_its_remedy(target, remedy):
    name = f"{target.__module__}.{target.__qualname__}"
    with pytest.raises(InstantiationException) as caught:
        instantiate({"algo": {"loss": {"_target_": name, "floor": 1.0}}})
    refused = "algo.loss: GRPO.__init__() got an unexpected keyword argument 'floor'"
    assert user_message(caught.value) == f"{refused}; {remedy.format(name)}"
