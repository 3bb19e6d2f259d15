"""An edition's file is read whole, and a name that leads nowhere is refused."""

import pytest

from apo_lab.editions.protocol import AVERAGED, Arm, editions, load_protocol
from apo_lightning.errors import ConfigError
from miniature_edition import MINIATURE


def written(folder, text):
    path = folder / "mine.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", editions())
def test_each_edition_names_existing_things_and_gives_every_compared_arm_three_seeds(name):
    protocol = load_protocol(name)
    for question in protocol.questions:
        stage = protocol.stage(question.stage)
        for method in {method for pair in question.pairs for method in pair}:
            plain = method.removesuffix(AVERAGED)
            of = stage if plain in (*stage.methods, *stage.arms) else protocol.stage("main")
            assert all(len(of.seeds[world]) >= 3 for world in question.worlds), (question.key, method)


def test_the_full_edition_tunes_eight_methods_with_equal_budgets_and_tests_on_fresh_seeds():
    protocol = load_protocol("full")
    assert {len(method.arms(family)) for method in protocol.tuned.values() for family in protocol.tuning} == {8}
    tuning = {seed for seeds in protocol.stage("tuning").seeds.values() for seed in seeds}
    others = {seed for stage in protocol.stages if stage.name != "tuning" for s in stage.seeds.values() for seed in s}
    assert len(protocol.tuned) == 8
    assert not tuning & others


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
    path = written(tmp_path, MINIATURE.replace(before, after))
    with pytest.raises(ConfigError, match=message):
        load_protocol(path)


def test_an_unknown_edition_is_refused():
    with pytest.raises(
        ConfigError, match="edition=ful: choose from cliff, countdown_rates, full, hour, language, longer, si"
    ):
        load_protocol("ful")
