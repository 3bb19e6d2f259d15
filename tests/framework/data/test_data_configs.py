"""The YAML files of the data sets."""

import pytest
from hydra.utils import instantiate

from composing import composed, names

SOURCES = names("data")


@pytest.mark.parametrize("name", SOURCES)
def test_the_source_is_named_as_its_file_and_asks_for_its_problem(name):
    source = instantiate(composed(f"data={name}").data)
    assert source.name == name
    assert "{problem}" in source.instruction
    source.check()
