"""The settings of a training run, as they lie in a folder from anyone."""

import pytest
import yaml

from apo_lightning.errors import ConfigError
from apo_lightning.run.trained import TrainedRun

SETTINGS = {
    "config": {
        "model": {"path": "m"},
        "data": {"name": "d"},
        "reward": {},
        "policy": {"lora": None},
        "seed": 1,
        "temperature": 1.0,
    },
    "hydra": {"hydra": {"runtime": {"choices": {"algo": "apo"}}}},
    "overrides": ["algo=apo"],
}


def write(folder, settings):
    (folder / ".hydra").mkdir()
    for name, content in settings.items():
        text = content if isinstance(content, str) else yaml.safe_dump(content)
        (folder / ".hydra" / f"{name}.yaml").write_text(text)


def test_the_settings_of_a_run_are_read(tmp_path):
    write(tmp_path, SETTINGS)
    run = TrainedRun.read(tmp_path)
    assert (run.algo, run.seed, run.temperature, run.overrides) == ("apo", 1, 1.0, ("algo=apo",))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config", {"seed": "abc"}),
        ("config", {"seed": None}),
        ("config", {"temperature": "hot"}),
        ("config", {"policy": None}),
        ("config", {"policy": 3}),
        ("config", {"model": 3}),
        ("config", {"reward": "x"}),
        ("config", "[1, 2]"),
        ("config", "null"),
        ("config", "a: " + "[" * 20_000),
        ("hydra", {"hydra": None}),
        ("hydra", {"hydra": {"runtime": {"choices": None}}}),
        ("hydra", "[]"),
    ],
)
def test_settings_of_a_wrong_type_are_refused_in_a_line(tmp_path, name, change):
    changed = change if isinstance(change, str) else {**SETTINGS[name], **change}
    write(tmp_path, {**SETTINGS, name: changed})
    with pytest.raises(ConfigError, match=rf"^({tmp_path}|run={tmp_path}).*$"):
        TrainedRun.read(tmp_path)
