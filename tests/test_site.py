"""What the site adds to the pages: tables of options, public names, pages for files, and the index of papers."""

import functools
import re

import pytest
from omegaconf import OmegaConf

import options
import repository
from composing import ROOT, composed, names
from options import ConfigFile, Option

PAPERS = (ROOT / "docs" / "papers.md").read_text()
ALGORITHMS = (ROOT / "docs" / "algorithms.md").read_text()


def test_an_option_has_its_place_its_default_and_its_comment_over_several_lines():
    text = (
        "# Summary.\ndefaults: [_self_]\nat:\n  first: [1, 2]  # the first\n                 # and last\n  second: a\n"
    )
    assert ConfigFile(text).options() == [
        Option(key="at.first", default="[1, 2]", meaning="the first and last"),
        Option(key="at.second", default="a", meaning=""),
    ]
    assert ConfigFile(text).summary == "Summary."


def test_a_block_has_the_comment_at_its_key_and_a_list_is_written_on_one_line():
    text = "outer:  # of all\n  inner:\n    - a  # not this one\n    - b\nlast: 1\n"
    assert ConfigFile(text).options() == [
        Option(key="outer", default="", meaning="of all"),
        Option(key="outer.inner", default="- a - b", meaning=""),
        Option(key="last", default="1", meaning=""),
    ]


def test_a_key_without_a_comment_has_the_meaning_of_the_docstring():
    options_of_apo = {
        option.key: option for option in ConfigFile((ROOT / "configs/algo/apo.yaml").read_text()).options()
    }
    assert options_of_apo["loss.push_coef"].meaning == "lambda: λ > 0, on the ratio of the error itself."
    model = {option.key: option for option in ConfigFile((ROOT / "configs/model/tiny.yaml").read_text()).options()}
    assert model["gradient_checkpointing"].meaning.startswith("recompute activations")


def test_the_page_of_options_has_every_file_and_explains_every_key_of_a_training_run():
    page = "\n".join(options.sections())
    titles = re.findall(r"^### (.+)$", page, re.MULTILINE)
    assert len(titles) == len(set(titles))
    assert {f"algo={name}" for name in names("algo")} | {"apo train", "apo evaluate", "trainer=fsdp8"} <= set(titles)
    assert "| `group_size` | `8` | completions a prompt, G |" in page


def test_a_page_with_the_text_of_another_file_keeps_the_links_of_that_file():
    text = repository.source_of("contributing", "")
    assert "](reference/measurements.md)" in text
    assert "](decisions/0032-the-laboratory-is-a-package-of-its-own.md)" in text
    assert "](../src/apo_lightning/types.py)" in text


def test_every_algorithm_and_every_paper_that_one_names_is_in_the_index_of_papers_and_links_to_itself():
    assert [name for name in names("algo") if f"`algo={name}`" not in PAPERS] == []
    named = set(re.findall(r"arXiv (\d{4}\.\d{5})", ALGORITHMS))
    listed = re.findall(r"^\| \[([\d.]+)\]\(https://arxiv\.org/abs/([\d.]+)\)", PAPERS, re.MULTILINE)
    assert len(named) > 10
    assert named <= {shown for shown, _ in listed}
    assert all(shown == linked for shown, linked in listed)


def counterparts(page: str) -> list[list[str]]:
    """What the second column of each row tells to type."""
    rows = re.findall(r"^\| .+$", (ROOT / "docs" / f"{page}.md").read_text(), re.MULTILINE)
    cells = [re.findall(r"`([^`/]+)`", row.split(" | ")[1]) for row in rows]
    return [[word for code in codes for word in code.split()] for codes in cells if codes]


composed_once = functools.cache(composed)
"""Most rows choose no option, and read the same configuration."""


@pytest.mark.parametrize("page", ["moving-from-trl", "moving-from-verl"])
def test_the_counterparts_of_other_libraries_options_exist(page):
    assert len(counterparts(page)) > 10
    for words in counterparts(page):
        groups = [word for word in words if re.fullmatch(r"(algo|data|policy|engine|reward|trainer|logger)=\w+", word)]
        config = composed_once(*{word.partition("=")[0]: word for word in reversed(groups)}.values())
        # A bare word after the first is a value of the key before it.
        keys = [word.partition("=")[0] for place, word in enumerate(words) if place == 0 or "." in word or "=" in word]
        for key in (key for key in keys if not key.startswith(("hydra.", "apo", "…"))):
            parent, _, last = key.rpartition(".")
            # A list: `in` on a node of OmegaConf is false for a key that is yet to be typed.
            assert last in list(OmegaConf.select(config, parent) if parent else config), (words, key)
