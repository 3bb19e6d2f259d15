"""What is planned: tuned arms after their tuning, no run twice, every seed of a stage in turn."""

from dataclasses import replace

import pandas as pd
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from apo_lab.editions.protocol import editions, load_protocol
from apo_lab.editions.tuning import chosen
from apo_lab.laboratory.command import laboratory
from apo_lab.laboratory.jobs import RunKey, missing_jobs, planned_jobs, progress
from apo_lab.laboratory.published import RUN_COLUMNS
from apo_lightning.errors import ConfigError
from apo_lightning.run.choices import composed
from miniature_edition import MINIATURE

NONE = pd.DataFrame(columns=list(RUN_COLUMNS))


@pytest.fixture
def protocol(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(MINIATURE)
    return load_protocol(str(path))


def config(**changes):
    return OmegaConf.merge(composed("lab"), {"output_dir": "outputs/lab", **changes})


def rows(*cells):
    keys = ("stage", "world", "method", "variant", "seed", "area")
    return pd.DataFrame([dict(zip(keys, cell, strict=True)) for cell in cells])


TUNED = (
    ("tuning", "small", "apo", "lr=0.001 pull_coef=0.1", 101, 0.5),
    ("tuning", "small", "apo", "lr=0.01 pull_coef=0.1", 101, 0.6),
)


def test_before_tuning_only_what_needs_no_choice_is_planned(protocol):
    found = [job.key for job in missing_jobs(config(), protocol, NONE)]
    assert found == [*(RunKey(*row[1:5]) for row in TUNED), RunKey("small", "grpo", "", 1)]


def test_after_tuning_the_best_configuration_is_run_and_the_parts_start_from_it(protocol):
    found = {job.key.method: job for job in missing_jobs(config(), protocol, rows(*TUNED))}
    assert sorted(found) == ["apo", "grpo", "strong", "wide"]
    assert found["apo"].arm.variant == "lr=0.01 pull_coef=0.1"
    assert found["wide"].arm.variant == "lr=0.01 pull_coef=0.1 anchor_size=12"
    # Its own coefficient replaces the chosen one.
    assert found["strong"].arm.variant == "lr=0.01 pull_coef=0.2"
    menu = ["+average", "+first_mixture", "+first_temperature", "+mixture", "+temperature"]
    assert sorted(found["apo"].decodings) == menu
    assert len(found["grpo"].decodings) == len(menu) + 4  # with the averages of four parts
    assert not found["wide"].decodings


def test_settings_are_chosen_by_the_endpoint_of_the_protocol_and_a_run_without_it_counts_0(protocol):
    table = rows(*TUNED).assign(passage=[0.1, float("nan")])
    by_passage = replace(protocol, tuned_by="passage")
    assert [chosen(each, table)["apo", "locks"].variant for each in (protocol, by_passage)] == [
        "lr=0.01 pull_coef=0.1",
        "lr=0.001 pull_coef=0.1",
    ]


def test_a_method_may_have_several_coefficients_or_none(protocol):
    settings = (("algo.loss.push_coef=1.25", "algo.loss.pull_coef=0.4"), ())
    tuned = replace(protocol.tuned["apo"], key="", values=(), settings=settings)
    variants = ["lr=0.001 push_coef=1.25 pull_coef=0.4", "lr=0.001"]
    assert [arm.variant for arm in tuned.arms("locks")][:2] == variants


def test_a_run_with_a_row_is_not_run_again(protocol):
    more = (*TUNED, ("main", "small", "grpo", "", 1, 0.4), ("main", "small", "apo", "lr=0.01 pull_coef=0.1", 1, 0.4))
    found = missing_jobs(config(), protocol, rows(*more))
    assert [job.key.method for job in found] == ["wide", "strong"]
    counts = progress(config(), protocol, rows(*more))
    assert counts == {"tuning": (2, 2), "main": (2, 2), "parts": (0, 2)}


def test_every_arm_of_the_hour_has_its_first_seed_before_any_has_its_second():
    seeds = [job.seed for job in planned_jobs(config(), load_protocol("hour"), NONE)]
    assert seeds == sorted(seeds)
    assert len(seeds) == 36


def tuned(protocol):
    """Rows of a finished tuning."""
    return rows(
        *(
            ("tuning", world, arm.method, arm.variant, seed, 0.5)
            for family, world in protocol.tuning.items()
            for method in protocol.tuned.values()
            for arm in method.arms(family)
            for seed in (101, 102)
        )
    ).assign(passage=0.5)


def test_all_runs_of_the_full_edition_have_folders_of_their_own():
    protocol = load_protocol("full")
    jobs = planned_jobs(config(), protocol, tuned(protocol))
    assert len({job.folder for job in jobs}) == len({job.key for job in jobs}) == len(jobs)
    assert len(jobs) == sum(num_runs for _, num_runs in progress(config(), protocol, tuned(protocol)).values())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", editions())
def test_every_arm_of_an_edition_can_be_built(name):
    """A pull too strong for its push is refused when the loss is made, and would end an edition after hours."""
    protocol = load_protocol(name)
    rows_of_tuning = tuned(protocol) if protocol.tuned else NONE
    jobs = planned_jobs(config(), protocol, rows_of_tuning)
    algorithms = {tuple(o for o in job.arm.overrides if not o.startswith("optimizer.lr=")) for job in jobs}
    for overrides in algorithms:
        algo = composed("train", [*overrides]).algo
        instantiate(algo.loss)
        instantiate(algo.advantage)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"only": ["grppo"]}, "only has 'grppo': choose from apo,"),
        ({"worlds": ["lock"]}, "worlds has 'lock': choose from small"),
        ({"stages": []}, "stages is empty"),
        ({"processes": 0}, "processes is 0"),
    ],
)
def test_what_cannot_be_run_is_refused(protocol, changes, message):
    with pytest.raises(ConfigError, match=message):
        planned_jobs(config(**changes), protocol, NONE)


def test_a_page_without_rows_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"runs\.csv\.gz does not exist: give tables="):
        laboratory(config(action="page", edition="hour", tables=str(tmp_path)))
