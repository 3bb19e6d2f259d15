"""The power that an edition states is checked before its first run."""

import pytest

from apo_lab.editions.protocol import load_protocol
from apo_lab.laboratory.power import check_power, power
from apo_lab.laboratory.registration import registration
from apo_lightning.errors import ConfigError
from miniature_edition import MINIATURE
from processes import start_script

STATED = "power: {difference: 0.16, share: 0.8}\n"


def edition(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return load_protocol(str(path))


def test_a_late_fall_is_found_at_its_level_and_lost_in_the_area():
    """16 points lost in the last fifth of the levels are 2 of the area: five seeds see it at L* alone."""
    found = {endpoint: power(endpoint, [5], 0.16, family=2, num_studies=40) for endpoint in ("area", "passage")}
    assert found["area"] < 0.6 < 0.75 < found["passage"]


def test_no_difference_is_found_as_rarely_as_the_level_says():
    assert power("passage", [5], 1e-6, family=1, num_studies=60) < 0.12


def test_power_grows_with_seeds_and_falls_with_the_family():
    few, many, family = (
        power("passage", [seeds], 0.16, family=size, num_studies=40) for seeds, size in ((3, 1), (8, 1), (3, 8))
    )
    assert many > few > family


def test_an_edition_whose_endpoint_misses_what_it_states_is_refused_with_the_remedy(tmp_path):
    protocol = edition(tmp_path, STATED + MINIATURE)
    with pytest.raises(ConfigError, match=r"question best: .*'area' finds it in 0 % .* the edition states 80 %: take"):
        check_power(protocol)


def test_an_edition_that_states_no_power_is_not_checked(tmp_path):
    check_power(edition(tmp_path, MINIATURE))


def test_the_published_edition_that_states_one_has_it():
    check_power(load_protocol("cliff"))


def test_an_edition_without_power_is_refused_before_any_run(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(STATED + MINIATURE)
    run = start_script("lab", f"edition={path}", f"output_dir={tmp_path}/lab", f"bases={tmp_path}/bases")
    assert run.wait() == [1]
    assert "take endpoint: passage, fewer pairs or more seeds" in run.said
    assert not (tmp_path / "bases").exists()


def test_the_passage_endpoint_is_in_the_hash_of_the_editions_that_ask_for_it_alone(tmp_path, monkeypatch):
    area, passage = (
        edition(tmp_path, MINIATURE.replace("stage: main", f"stage: main, endpoint: {name}"))
        for name in ("area", "passage")
    )
    before = [registration(each) for each in (area, passage)]
    monkeypatch.setattr("apo_lab.laboratory.registration.OF_ENDPOINT", {"passage": ("statistics/cusum.py",)})
    after = [registration(each) for each in (area, passage)]
    assert before[0] == after[0]
    assert before[1] != after[1]
