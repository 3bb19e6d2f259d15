"""The page of completions: what is in it is what is on disk, and nothing that a completion says gets out."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from apo_lab.commands.report import report
from apo_lab.reporting.rollouts import read_rollouts, rollout_page
from apo_lightning.errors import ConfigError
from running import SIGNAL, train_tiny

VOID = {"meta", "br", "link", "img", "input", "hr"}
HOSTILE = "</script><script>alert('x')</script><!-- <img src=http://x.example/ onerror=alert(1)>"


class Reader(HTMLParser):
    """Tags, attributes and the text of scripts; complains about tags that do not close."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.scripts = [], [], [], {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "script":
            self.script = dict(attrs).get("id", "code")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[self.script] = self.scripts.get(self.script, "") + data


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train_tiny(folder, *SIGNAL, "callbacks=[quiet,token_writer]", "callbacks.token_writer.every_n_steps=2")
    return folder


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_page_of_a_run_holds_its_files_lines(run):
    path = report(OmegaConf.create({"rollouts": str(run), "rollout_limit": 1000}))
    assert path == run / "rollouts.html"
    scripts = Reader(path.read_text()).scripts
    completions = lines_of(run / "rollouts" / "step_000002.jsonl")
    [head, *tokens] = lines_of(run / "rollouts" / "tokens" / "step_000002.jsonl")
    assert json.loads(scripts["lines"]) == completions
    assert json.loads(scripts["texts"]) == head["texts"]
    assert [json.loads(scripts[f"tokens-{place}"]) for place in range(16)] == tokens
    # One line is one completion in both files, and its tokens spell it.
    for line, own in zip(completions, tokens, strict=True):
        assert (line["prompt_id"], line["sample"]) == (own["prompt_id"], own["sample"])
        text = "".join(head["texts"][str(i)] for i in own["token_ids"])
        assert text.removesuffix("<|end|>") == line["completion"] or "<|" in text
        assert len(own["anchors"]) == len(own["logprob"]) == line["num_tokens"]
        assert all(len(anchors) == 8 for anchors in own["anchors"])


def test_the_page_needs_nothing_from_outside(run):
    html = rollout_page(read_rollouts(run, 8))
    reader = Reader(html)
    assert not {"link", "img", "iframe"} & set(reader.tags)
    assert not {"src", "href"} & {name for name, _ in reader.attributes}
    assert re.findall(r"https?://|@import|url\(|fetch\(|XMLHttpRequest|innerHTML|eval\(", html) == []


def test_hostile_completions_stay_data(run, tmp_path):
    shutil.copytree(run / "rollouts", tmp_path / HOSTILE.replace("/", "_") / "rollouts")
    folder = tmp_path / HOSTILE.replace("/", "_")
    path = folder / "rollouts" / "step_000002.jsonl"
    lines = lines_of(path)
    lines[0] |= {"completion": HOSTILE, "prompt": HOSTILE, "extracted": HOSTILE}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    reader = Reader(rollout_page(read_rollouts(folder, 1000)))
    assert json.loads(reader.scripts["lines"])[0]["completion"] == HOSTILE
    assert reader.tags.count("script") == 3 + 16
    assert "alert" not in reader.scripts["code"]
    assert "img" not in reader.tags


def test_a_limit_takes_whole_groups_of_every_step_and_says_so(run, tmp_path):
    shutil.copytree(run / "rollouts", tmp_path / "rollouts")
    shutil.rmtree(tmp_path / "rollouts" / "tokens")
    sample = read_rollouts(tmp_path, 10)
    assert [(line["step"], line["sample"]) for line in sample.lines] == [(s, i) for s in (1, 2) for i in range(4)]
    assert (sample.steps, sample.num_completions) == ((1, 2), 32)
    assert not any(sample.tokens)
    assert "8 of 32 completions\nfrom 2 of 2 recorded steps: 1, 2." in rollout_page(sample)
    # With a file of their tokens, these steps alone.
    assert read_rollouts(run, 10).steps == (2,)


def test_what_cannot_be_read_is_one_line(run, tmp_path):
    with pytest.raises(ConfigError, match=r"there is no rollouts/step_\*.jsonl in it"):
        read_rollouts(tmp_path, 10)
    with pytest.raises(ConfigError, match="rollout_limit is 0"):
        read_rollouts(run, 0)
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "step_000001.jsonl").write_text('{"step": 1')
    with pytest.raises(ConfigError, match=r"step_000001.jsonl: not JSON"):
        read_rollouts(tmp_path, 10)


@pytest.mark.skipif(shutil.which("node") is None, reason="no JavaScript interpreter")
def test_levels_are_those_that_the_legend_names(run, tmp_path):
    code = Reader(rollout_page(read_rollouts(run, 8))).scripts["code"]
    levels = code[
        code.index("const RARE") : code.index(
            "// ------------------------------------------------------------------ state"
        )
    ]
    ask = "const l = (q, ...v) => v.map((x) => QUANTITIES[q].level(x)); console.log(JSON.stringify(["
    ask += 'l("probability", 1, 0.9, 0.8, 0.4, 0.1, 0.01), l("entropy", 0, 0.1, 0.5, 1, 2),'
    ask += 'l("r_anchor", 1, 1 / 1.2, 1.2, 0.1, 9), l("advantage", 0, -0.5, 2), QUANTITIES.r_anchor.up(0.5)]))'
    (tmp_path / "levels.js").write_text(levels + ask)
    done = subprocess.run(["node", tmp_path / "levels.js"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[0, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [0, 1, 1, 4, 4], [0, 2, 4], False]
