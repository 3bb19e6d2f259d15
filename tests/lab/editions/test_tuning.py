import pandas as pd
import pytest

from apo_lab.editions.protocol import Protocol, Stage, TunedMethod, World
from apo_lab.editions.tuning import chosen, configurations

PROTOCOL = Protocol(
    name="small",
    margin=0.02,
    worlds={"hall": World(name="hall", family="locks", level=0.5, base=(), run=())},
    tuning={"locks": "hall"},
    tuned={
        "apo": TunedMethod(
            name="apo", overrides=("algo=apo",), key="algo.loss.pull_coef", values=("0.1", "0.2"), rates={"locks": (1,)}
        ),
        "grpo": TunedMethod(
            name="grpo", overrides=("algo=grpo",), key="algo.clip", values=("0.2",), rates={"locks": (1, 2)}
        ),
    },
    base_weights=(),
    stages=(Stage(name="tuning", seeds={"hall": (101, 102)}, methods=("apo", "grpo"), arms={}),),
    questions=(),
    predictions=(),
)


def rows(*found):
    """(method, variant, seed, area) of the tuning stage."""
    return pd.DataFrame(
        [
            {"stage": "tuning", "world": "hall", "method": method, "variant": variant, "seed": seed, "area": area}
            for method, variant, seed, area in found
        ],
        columns=["stage", "world", "method", "variant", "seed", "area"],
    )


WEAK, STRONG = "lr=1 pull_coef=0.1", "lr=1 pull_coef=0.2"
# Means 0.5 and 0.55: the second is chosen although the first has the best run.
APO = [("apo", WEAK, 101, 0.7), ("apo", WEAK, 102, 0.3), ("apo", STRONG, 101, 0.6), ("apo", STRONG, 102, 0.5)]


def test_the_highest_mean_over_seeds_is_chosen():
    found = chosen(PROTOCOL, rows(*APO))
    assert {key: arm.variant for key, arm in found.items()} == {("apo", "locks"): STRONG}


def test_nothing_is_chosen_while_one_run_is_missing():
    for left_out in range(4):
        assert chosen(PROTOCOL, rows(*APO[:left_out], *APO[left_out + 1 :])) == {}


def test_of_equal_means_the_first_configuration_is_chosen():
    even = rows(*((method, variant, seed, 0.5) for method, variant, seed, _ in reversed(APO)))
    assert chosen(PROTOCOL, even)["apo", "locks"].variant == WEAK


def test_runs_of_other_stages_worlds_and_settings_do_not_count():
    table = rows(*APO)
    for column, value in (("stage", "main"), ("world", "cellar"), ("variant", "lr=3 pull_coef=0.1"), ("seed", 7)):
        other = table.copy()
        other.loc[0, column] = value
        assert chosen(PROTOCOL, other) == {}


def test_every_configuration_is_listed_with_the_runs_that_it_has():
    found = configurations(PROTOCOL, rows(*APO[:3]))
    assert [(each.arm.variant, each.areas, each.num_seeds) for each in found] == [
        (WEAK, (0.7, 0.3), 2),
        (STRONG, (0.6,), 2),
        ("lr=1 clip=0.2", (), 2),
        ("lr=2 clip=0.2", (), 2),
    ]
    assert [each.area for each in found] == [pytest.approx(0.5), None, None, None]
