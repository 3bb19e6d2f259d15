"""What the README shows a newcomer to write is run as it stands there."""

import re
import shlex

import pytest
import torch
import yaml
from composing import CONFIGS, ROOT, composed
from factories import make_step
from omegaconf import OmegaConf

from apo_lightning.losses import GRPO
from apo_lightning.rewards import CallableReward
from apo_lightning.run.choices import expand_glob
from apo_lightning.types import LossInputs

README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs" / "evaluating.md").read_text()
COMMANDS = re.findall(r"^\$ python (train|evaluate|report)\.py ?(.*?)(?:\s+#.*)?$", README + GUIDE, flags=re.MULTILINE)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture(scope="module")
def shown() -> dict:
    names: dict = {"__name__": "shown"}
    for block in blocks("python"):
        exec(block, names)
    return names


def test_the_algorithm_scales_the_push_and_leaves_the_rest(shown):
    inputs = LossInputs(
        token_ids=torch.tensor([0, 1]),
        sequence_ids=torch.tensor([0, 1]),
        logprobs=torch.tensor([-1.0, -1.0]),
        old_logprobs=torch.tensor([-1.0, -1.0]),
        advantages=torch.tensor([2.0, -2.0]),
        is_correct=torch.tensor([True, False]),
    )
    # At ratio 1 the loss is −A: −2 and, halved, 1 instead of 2.
    assert shown["SofterPush"](scale=0.5)(inputs).per_token.tolist() == [-2.0, 1.0]
    assert GRPO()(inputs).per_token.tolist() == [-2.0, 2.0]
    mask = shown["SofterPush"]().gradient_mask(torch.tensor([2.0, 0.0]), torch.tensor([True, True]))
    assert mask.tolist() == [True, False]


def test_the_yaml_names_the_class_and_its_fields():
    (algo,) = (yaml.safe_load(block) for block in blocks("yaml"))
    assert algo["loss"] == {"_target_": "my_package.softer.SofterPush", "scale": 0.5}
    assert set(algo) == {"advantage", "loss"}
    # As Hydra composes it: what an algorithm does not name is what train.yaml says.
    assert OmegaConf.merge(OmegaConf.load(CONFIGS / "train.yaml"), {"algo": algo}).aggregation == "token_mean"


def test_the_reward_takes_trls_signature(shown):
    verdicts = CallableReward(function=shown["short"]).score(["18", "18 " * 20, "17"], ["18", "18", "18"])
    assert [verdict.reward for verdict in verdicts] == [1.0, 0.0, 0.0]


def test_the_callback_reads_a_step(shown):
    step = make_step(("correct", "incorrect", "incorrect", "correct"), lengths=[1, 2, 5, 3])
    assert shown["WrongLength"]().on_step(step) == {"mine/wrong_tokens": 3.5}
    assert shown["WrongLength"]().on_step(make_step(("correct", "correct"))) is None


@pytest.mark.parametrize(("program", "command"), COMMANDS)
def test_every_command_composes(program, command):
    typed = [expand_glob(word) for word in shlex.split(command)]
    overrides = [word for word in typed if word != "-m" and "my_package" not in word and "{" not in word]
    is_list = re.compile(r"=\[.*\]$")
    composed(*(word if is_list.search(word) else word.split(",")[0] for word in overrides), config_name=program)
