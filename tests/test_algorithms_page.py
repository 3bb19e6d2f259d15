"""The page of algorithms is the one that their files make."""

import re

from benchmarks.algorithms_page import page
from composing import ROOT, names

PAGE = ROOT / "docs" / "algorithms.md"


def test_the_page_is_current():
    assert page() == PAGE.read_text(), "run: python -m benchmarks.algorithms_page docs"


def test_every_algorithm_has_a_section_and_every_figure_exists():
    text = PAGE.read_text()
    assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == sorted(names("algo"))
    figures = re.findall(r"\]\((figures/algorithms/\w+\.svg)\)", text)
    assert figures
    assert all((PAGE.parent / figure).exists() for figure in figures)
    assert len(figures) == len(list((PAGE.parent / "figures" / "algorithms").glob("*.svg")))
