"""What a command imports is not searched for garbage, and everything else is."""

import gc
import sys
import weakref

import pytest

from apo_lightning.common.importing import no_garbage_searched
from apo_lightning.run.commands import Command


class Cycle:
    def __init__(self):
        self.itself = self


@pytest.fixture(autouse=True)
def as_before():
    yield
    gc.enable()
    gc.freeze()  # as tests/conftest.py leaves it


@pytest.mark.parametrize("was_on", [True, False])
def test_the_search_is_off_inside_and_afterwards_as_before_also_after_an_error(was_on):
    (gc.enable if was_on else gc.disable)()
    with pytest.raises(ZeroDivisionError), no_garbage_searched():
        1 / gc.isenabled()
    assert gc.isenabled() is was_on


def test_a_commands_module_is_imported_without_it_and_left_out_later(tmp_path, monkeypatch):
    gc.unfreeze()
    (tmp_path / "own_work.py").write_text("import gc\nwas_on = gc.isenabled()\nwork = len\n")
    monkeypatch.syspath_prepend(tmp_path)
    command = Command(name="own", summary="", config=None, work="own_work:work", details="")
    assert command.load() is len
    assert not sys.modules["own_work"].was_on
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0


def test_where_nothing_is_imported_what_went_before_is_still_found():
    gc.unfreeze()
    left = weakref.ref(Cycle())
    with no_garbage_searched():
        import json  # noqa: F401
    gc.collect()
    assert left() is None
