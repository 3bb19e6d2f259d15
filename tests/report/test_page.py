"""The page: complete, safe and on its own."""

import csv
import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from apo_report.figures.report import report_figures
from apo_report.page import Report, csv_text, markdown, markdown_page, page, warnings_of, write_report
from apo_report.records import Cell, Evaluations, Table, left, right, row_of
from report_records import make_covered, make_evaluated, make_measurement, make_run, make_table

SMALL = {"num_problems": 8, "num_samples": 4}
VOID = {"meta", "br", "link", "img", "input", "hr"}


class Reader(HTMLParser):
    """Tags, attributes and text of a page; complains about tags that do not close."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def of(self, name):
        return [value for key, value in self.attributes if key == name]


def contents(**kwargs):
    return Report(**{"title": "A report", "date": "1 May 2026", "num_runs": 2, **kwargs})


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    measurements = [make_measurement(algo, **SMALL) for algo in (None, "grpo", "apo")]
    evaluated = tuple(make_evaluated(algo, **SMALL) for algo in (None, "apo"))
    report = contents(
        tables=(make_table(), make_table("entropy")),
        figures=report_figures([make_run("apo"), make_run("grpo")], measurements),
        evaluations=Evaluations(results=evaluated, coverage=(make_covered(),)),
    )
    path = write_report(report, tmp_path_factory.mktemp("report"))
    links = [link for link in Reader(path.read_text()).of("href") if not link.startswith("#")]
    files = [file for folder in ("tables", "figures") for file in (path.parent / folder).iterdir()]
    assert sorted(path.parent / link for link in links) == sorted(files)
    return path.read_text()


def test_the_page_needs_nothing_from_outside_and_every_link_within_it_arrives(full):
    reader = Reader(full)
    # Names of XML vocabularies are not fetched; they are in attributes called xmlns.
    assert [value for value in reader.of("src") + reader.of("href") + reader.of("xlink:href") if ":" in value] == []
    assert "script" not in reader.tags
    assert "link" not in reader.tags
    assert re.findall(r"@import|@font-face|url\((?!#)", full) == []
    ids = reader.of("id")
    assert len(set(ids)) == len(ids)
    assert {link[1:] for link in reader.of("href") if link.startswith("#")} <= set(ids)


def test_numbers_intervals_marks_and_files_are_on_the_page(full):
    assert "<strong>50.67</strong>" in full
    assert '<span class="interval">[48.10, 53.20]</span>' in full
    assert ">78.10†<" in full
    assert 'href="tables/main_results.csv"' in full
    assert 'href="figures/pareto.pdf"' in full
    text = Reader(full).text
    assert "training runs 2, evaluations 2,\nmeasurements of oracle coverage 1." in text


def test_hostile_text_stays_text():
    hostile = "<script>alert('x')</script>"
    evaluated = make_evaluated(hostile, model=hostile, benchmark=hostile, truncated=30, **SMALL)
    measurement = make_measurement(hostile, benchmark=hostile, model=hostile, **SMALL)
    report = contents(
        title=hostile,
        date=hostile,
        tables=(make_table(text=hostile, notes=(hostile,)),),
        figures=report_figures([make_run(hostile)], [measurement]),
        evaluations=Evaluations(results=(evaluated,)),
    )
    html = page(report)
    assert "script" not in Reader(html).tags
    assert "&lt;script&gt;" in html
    text = "a|b `c` <script> *x* [y](z) \\ _d_ snake_case\nline"
    line = markdown(make_table(text=text, notes=())).splitlines()[7]
    assert r"a\|b \`c\` \<script> \*x\* \[y](z) \\ \_d\_ snake_case line" in line


def test_the_markdown_page_has_every_table_with_its_numbers_and_every_figure():
    figures = report_figures([], [make_measurement("apo", **SMALL)])
    text = markdown_page(contents(tables=(make_table(),), figures=figures))
    for section, rows in make_table().sections:
        assert section in text
        assert all(cell.text in text for row in rows for cell in row.cells)
    assert re.findall(r"!\[.*\]\(figures/(.*)\.svg\)", text) == [figure.name for figure in figures]
    assert text.index(make_table().title) < text.index(figures[0].title)


@pytest.mark.parametrize(
    ("truncated", "verdicts", "words"),
    [
        # 32 samples: 2 of them are 6.25 %, 1 is 3.125 %; the limits are 5 % and 10 %.
        (2, {"correct": 32}, ["6.2% of the samples were cut at 3072 tokens"]),
        (1, {"correct": 32}, []),
        (0, {"correct": 28, "unparsed": 4}, ["no answer was found in 12.5%"]),
        (0, {"correct": 29, "unparsed": 3}, []),
        (0, {"correct": 31, "timeout": 1}, ["ran out of time on 1 of 32"]),
        (0, {"correct": 30, "error": 2}, ["failed on 2 of 32"]),
    ],
)
def test_what_weakens_a_number_is_said_first(truncated, verdicts, words):
    evaluated = make_evaluated("apo", truncated=truncated, verdicts=verdicts, path="outputs/7/results.json", **SMALL)
    warnings = warnings_of(evaluated)
    assert all("AIME 24 (outputs/7): " in warning for warning in warnings)
    assert len(warnings) == len(words)
    assert all(word in warning for word, warning in zip(words, warnings, strict=True))
    html = page(contents(tables=(make_table(),), evaluations=Evaluations(results=(evaluated,))))
    assert all(html.index(word) < html.index("<table") for word in words)


TABLE = Table(
    name="main",
    title="Main results",
    columns=(*left("Method"), *right("Pass@1", group="AIME 24"), *right("K")),
    rows=(
        row_of("Base", "–", Cell("256", 256.0), section="Qwen"),
        row_of(
            "APO (β = 0.1)",
            Cell("43.57", 43.5749, (41.25, 45.875), "[41.2, 45.9]", bold=True),
            Cell("8", 8.0, marked=True),
            section="Qwen",
        ),
    ),
    notes=("†: wrong.", "Bold: best."),
)


def test_markdown_says_what_a_mark_means():
    assert markdown(TABLE) == (
        "### Main results\n"
        "\n"
        "**Qwen**\n"
        "\n"
        "| Method | AIME 24 Pass@1 | K |\n"
        "|:--|--:|--:|\n"
        "| Base | – | 256 |\n"
        "| APO (β = 0.1) | **43.57** [41.2, 45.9] | 8† |\n"
        "\n"
        "†: wrong.  \n"
        "Bold: best.\n"
    )


def test_csv_holds_unrounded_numbers_and_bounds():
    header, first, second = csv.reader(io.StringIO(csv_text(TABLE)))
    assert header == ["section", "Method", "AIME 24 Pass@1", "AIME 24 Pass@1 low", "AIME 24 Pass@1 high", "K"]
    assert first == ["Qwen", "Base", "–", "", "", "256"]
    assert second == ["Qwen", "APO (β = 0.1)", "43.5749", "41.25", "45.875", "8"]


def test_no_cell_is_a_formula_of_a_spreadsheet_and_numbers_stay():
    texts = ("=1+1", "@SUM(1)|cmd", "-1+cmd|' /C calc'!A0", "+A1", "\t=1", "-0.3", "+5e-3", "-", "a=b")
    table = Table(name="t", title="t", columns=left("=head"), rows=tuple(row_of(text) for text in texts), notes=())
    (_, head), *rows = csv.reader(io.StringIO(csv_text(replace(table, rows=(row_of("x", section="=s"), *table.rows)))))
    assert head == "'=head"
    assert [section for section, _ in rows] == ["'=s", *[""] * len(texts)]
    assert [text for _, text in rows[1:]] == [*(f"'{text}" for text in texts[:5]), *texts[5:]]


def test_a_report_has_no_characters_that_a_terminal_obeys(tmp_path):
    write_report(contents(title="\x1b[2J", tables=(make_table(text="\x1b[2J"),)), tmp_path)
    assert not [path for path in tmp_path.rglob("*.*") if b"\x1b" in path.read_bytes()]
