"""The YAML files of the data sets."""

import json

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from apo_lightning.data import ProblemSet
from composing import composed, names

SOURCES = names("data")


@pytest.mark.parametrize("name", SOURCES)
def test_the_source_is_named_as_its_file_and_asks_for_its_problem(name):
    source = instantiate(composed(f"data={name}").data)
    assert source.name == name
    assert "{problem}" in source.instruction
    source.check()


def test_a_local_file_takes_the_place_of_the_hub(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps({"problem": f"{i}?", "answer": str(i)}) + "\n" for i in range(300)))
    bench = {"_target_": "apo_lightning.data.ProblemSet", "path": str(path), "hub": None}
    for name in ("gsm8k", "math", "dapo17k"):
        config = composed(f"data={name}").data
        overrides = {"path": str(path), "num_validation": 10, "validation": {"bench": bench, "file": str(path)}}
        source = instantiate(OmegaConf.merge(config, overrides))
        assert isinstance(source.validation["bench"], ProblemSet)
        problems = source.load()
        assert (len(problems.train), len(problems.validation[name])) == (290, 10)
        assert len(problems.validation["bench"]) == len(problems.validation["file"]) == 300
