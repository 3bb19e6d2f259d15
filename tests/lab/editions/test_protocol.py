"""An edition's file is read whole, a name that leads nowhere is refused, and the best configuration is chosen."""

import pandas as pd
import pytest

from apo_lab.editions.protocol import (
    AVERAGED_PARTS,
    HALF,
    Arm,
    Protocol,
    Stage,
    TunedMethod,
    World,
    editions,
    load_protocol,
    method_of,
)
from apo_lab.editions.tuning import chosen, configurations
from apo_lightning.errors import ConfigError
from apo_lightning.model.average import PARTS
from miniature_edition import MINIATURE


@pytest.mark.parametrize("name", editions())
def test_each_edition_names_existing_things_and_gives_every_compared_arm_three_seeds(name):
    protocol = load_protocol(name)
    for question in protocol.questions:
        stage = protocol.stage(question.stage)
        for method in {method for pair in question.pairs for method in pair} - {HALF}:
            plain = method_of(method)
            of = stage if plain in (*stage.methods, *stage.arms) else protocol.stage("main")
            assert all(len(of.seeds[world]) >= 3 for world in question.worlds), (question.key, method)


def test_the_full_edition_tunes_eight_methods_with_equal_budgets_and_tests_on_fresh_seeds():
    protocol = load_protocol("full")
    assert {len(method.arms(family)) for method in protocol.tuned.values() for family in protocol.tuning} == {8}
    tuning = {seed for seeds in protocol.stage("tuning").seeds.values() for seed in seeds}
    others = {seed for stage in protocol.stages if stage.name != "tuning" for s in stage.seeds.values() for seed in s}
    assert len(protocol.tuned) == 8
    assert not tuning & others


def test_the_parts_that_an_edition_averages_are_those_of_a_model():
    assert ("all", *AVERAGED_PARTS) == PARTS


def test_a_variant_names_the_settings_that_differ():
    arm = Arm(method="x", overrides=("algo=pkpo", "optimizer.lr=0.0003", "algo.advantage.later_k={60: 1}"))
    assert arm.variant == "lr=0.0003 later_k={60: 1}"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("seeds: {small: [101]}", "seeds: {smal: [101]}", "stage tuning: 'smal' is not among small"),
        ("like: apo", "like: grpo", "stage parts: 'grpo' is not among apo"),
        ("[grpo, apo]", "[grppo, apo]", "question best: 'grppo' is not among"),
        ("stage: main", "stage: min", "stage 'min' is not in edition .*: choose from tuning, main, parts"),
        ("margin: 0.02", "", "lacks the key 'margin'"),
        ("stage: main,", "stag: main,", "has other keys than an edition: .*'stag'"),
        (
            "stage: main,",
            "stage: main, endpoint: end,",
            "question best, endpoint: 'end' is not among area, passage, last",
        ),
    ],
)
def test_what_leads_nowhere_is_refused(tmp_path, before, after, message):
    path = tmp_path / "mine.yaml"
    path.write_text(MINIATURE.replace(before, after))
    with pytest.raises(ConfigError, match=message):
        load_protocol(str(path))
    with pytest.raises(ConfigError, match=f"edition=ful: choose from {', '.join(editions())}, or give"):
        load_protocol("ful")


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
    assert [(each.arm.variant, each.values, each.num_seeds) for each in found] == [
        (WEAK, (0.7, 0.3), 2),
        (STRONG, (0.6,), 2),
        ("lr=1 clip=0.2", (), 2),
        ("lr=2 clip=0.2", (), 2),
    ]
    assert [each.mean for each in found] == [pytest.approx(0.5), None, None, None]
