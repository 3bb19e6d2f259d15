"""Entrances, forced prefixes and shift of a policy: against a plain float64 model that is run node by node."""

import copy
import json
from collections import defaultdict

import pandas as pd
import pytest
import torch

from apo_lab.commands.coverage import cover
from apo_lab.coverage.entrances import EntranceCoverage
from apo_lab.coverage.sampled_entrances import SampledEntranceCoverage
from apo_lab.diagnostics.answer_tree import AnswerTree
from apo_lab.diagnostics.exact_coverage import ExactCoverage
from apo_lab.diagnostics.listed_answers import held_out_prompts, list_answers
from apo_lab.puzzles import Countdown, Divisors, Locks, PuzzleSource
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.records import ModelCard
from composing import ROOT, composed, tiny_policy
from processes import start_script

PUZZLES = [Locks(), Countdown(num_numbers=3, min_solutions=1, min_strategies=1), Divisors()]
CARD = ModelCard(name="tiny", path=None, weights_sha256="0", dtype="float32")
TEMPERATURE = 0.7


def decision_length(puzzle, text):
    """Tokens up to and with the first decision, by hand: a letter; a number and an operator; a digit."""
    return {"locks": 1, "countdown": 2, "divisors": 1}[puzzle.name]


class Plain:
    """A policy as next-token log-probs of a text, in float64."""

    def __init__(self, policy):
        self.model, self.tokenizer = copy.deepcopy(policy.model).double(), policy.tokenizer

    @torch.no_grad()
    def next_logprobs(self, prompt, text):
        ids = [*prompt.token_ids, *self.tokenizer.encode(text, add_special_tokens=False)]
        return (self.model(torch.tensor([ids])).logits[0, -1] / TEMPERATURE).log_softmax(-1)

    def logprob(self, prompt, text, begin=0, *, ends=False):
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), *[self.tokenizer.eos_token_id] * ends]
        return sum(self.next_logprobs(prompt, text[:t])[ids[t]] for t in range(begin, len(ids)))


@pytest.fixture(scope="module", params=PUZZLES, ids=lambda puzzle: puzzle.name)
def world(request):
    """A puzzle, two policies that differ much, and what `EntranceCoverage` finds."""
    policy, base = (tiny_policy(seed) for seed in (1, 2))
    with torch.no_grad():
        policy.head_weight.mul_(6)
        base.head_weight.mul_(3)
    puzzle = request.param
    source = PuzzleSource(puzzle=puzzle, num_train=1, num_validation=5)
    coverage = EntranceCoverage(name="entrances", base_weights=[0.5, 1], limit=3, tokens_per_microbatch=64)
    before = {name: weight.clone() for name, weight in policy.model.named_parameters()}
    found = coverage.measure(policy, base, source, "{problem}", CARD, temperature=TEMPERATURE)
    assert all(torch.equal(weight, before[name]) for name, weight in policy.model.named_parameters())
    prompts = held_out_prompts(source, policy.tokenizer, "{problem}")[:3]
    return puzzle, prompts, Plain(policy), Plain(base), found, (policy, base)


def test_masses_and_skills_are_those_of_a_forced_policy(world):
    puzzle, prompts, policy, base, (_, rows), _ = world
    expected = {}
    for prompt in prompts:
        for answer in puzzle.answers(prompt.problem):
            if answer.is_valid:
                entrance = answer.text[: decision_length(puzzle, answer.text)]
                masses = [of.logprob(prompt, entrance).exp().item() for of in (base, policy)]
                row = expected.setdefault((prompt.problem, entrance), [*masses, 0.0, 0.0])
                for place, of in enumerate((base, policy)):
                    row[2 + place] += of.logprob(prompt, answer.text, len(entrance), ends=True).exp().item()
    assert [*zip(rows.problem, rows.entrance, strict=True)] == [*expected]
    for place, name in enumerate(("base_mass", "policy_mass", "base_forced_pass@1", "policy_forced_pass@1")):
        assert rows[name].tolist() == pytest.approx([row[place] for row in expected.values()], rel=2e-4)


def test_the_shift_is_the_mean_over_the_tree_of_right_answers(world):
    puzzle, prompts, policy, base, (result, _), _ = world
    by_place = defaultdict(list)
    for prompt in prompts:
        texts = [answer.text for answer in puzzle.answers(prompt.problem) if answer.is_valid]
        for length in range(max(map(len, texts)) + 1):
            if not (nodes := {text[:length] for text in texts if len(text) >= length}):
                continue
            sums = torch.zeros(3, dtype=torch.float64)
            for node in nodes:
                weight = policy.logprob(prompt, node).exp() if node else torch.tensor(1.0)
                own, other = (of.next_logprobs(prompt, node) for of in (policy, base))
                kl = (own.exp() * (own - other)).sum()
                sums += weight * torch.tensor([1, kl, (own.exp() - other.exp()).abs().sum() / 2])
            by_place[length + 1 - decision_length(puzzle, texts[0])].append((sums[1:] / sums[0]).tolist())
    assert [row["place"] for row in result.shift] == sorted(by_place)
    for row in result.shift:
        mean = torch.tensor(by_place[row["place"]], dtype=torch.float64).mean(0).tolist()
        assert [row["kl"], row["total_variation"]] == pytest.approx(mean, rel=2e-4)
    assert {row["place"]: row["kind"] for row in result.shift}[0].startswith(puzzle.decision)


def test_pass_at_k_is_that_of_the_exact_measure_and_the_parts_are_its_change(world, tmp_path):
    puzzle, prompts, _, _, (result, rows), (policy, base) = world
    exact = ExactCoverage(puzzle, ks=(1, 64))
    for step, (name, of) in enumerate((("policy", policy), ("base", base))):
        found = exact.score(of, prompts, step, tmp_path, temperature=TEMPERATURE)
        for key in ("pass@1", "pass@64", *(key for key in result.metrics[name] if key.startswith("cover@"))):
            assert result.metrics[name][key] == pytest.approx(found[key], rel=1e-5), key
    difference = result.metrics["policy"]["pass@64"] - result.metrics["base"]["pass@64"]
    assert sum(result.change.values()) == pytest.approx(difference, abs=1e-12)
    for part, total in result.change.items():
        assert sum(row[part] for row in result.decisions) == pytest.approx(total, abs=1e-12)
    assert sum(row["num_entrances"] for row in result.decisions) == len(rows)


def test_averages_end_at_the_base_model_and_a_part_moves_no_other_weight(world):
    _, _, _, _, (result, _), _ = world
    found = {(row["part"], row["base_weight"]): row for row in result.averages}
    # model=tiny has two layers, so that there is no middle third.
    assert {part for part, _ in found} == {"all", "first", "last", "outside"}
    for key in ("pass@1", "pass@64", "entered@64"):
        assert found["all", 1.0][key] == pytest.approx(result.metrics["base"][key], rel=1e-6)
    assert len({row["pass@1"] for row in found.values()}) == len(found)


def test_a_shared_beginning_is_one_node_and_an_answer_that_is_wrong_none():
    policy = tiny_policy()
    puzzle = Divisors()
    prompts = held_out_prompts(
        PuzzleSource(puzzle=puzzle, num_train=1, num_validation=1), policy.tokenizer, "{problem}"
    )
    tree = AnswerTree.of(puzzle, list_answers(puzzle, prompts, policy, 64))
    texts = [answer.text for answer in puzzle.answers(prompts[0].problem)]
    assert len(tree.token) == len({text[:t] for text in texts for t in range(len(text) + 1)})
    locks = Locks()
    prompts = held_out_prompts(PuzzleSource(puzzle=locks, num_train=1, num_validation=5), policy.tokenizer, "{problem}")
    tree = AnswerTree.of(locks, list_answers(locks, prompts, policy, 64))
    opening = [answer.strategy for p in prompts for answer in locks.answers(p.problem) if answer.is_valid]
    assert tree.entrances == opening


TINY = ("prompts_per_step=16", "prompts_per_minibatch=8", "trainer.max_steps=1", "data.num_validation=8")
# A model without training earns no reward, and so learns nothing.
OF_LOCKS = ("experiment=lab/locks", *TINY, f"model.path={ROOT}/docs/lab/bases/locks_a/locks", "data.num_train=64")
LOCKS = "coverage=entrances"


def test_the_command_compares_a_run_with_its_base(tmp_path):
    start_script("train.py", *OF_LOCKS, "temperature=0.8", f"hydra.run.dir={tmp_path}", "optimizer.lr=1e-2").finish()
    said = start_script("coverage", LOCKS, f"run={tmp_path}", "coverage.base_weights=[0.5]").finish()
    folder = tmp_path / "evaluation" / "coverage_entrances"
    result = json.loads((folder / "entrances.json").read_text())
    assert (result["puzzle"], result["decision"], result["num_problems"]) == ("locks", "strategy", 8)
    rows = pd.read_csv(folder / "entrances.csv")
    assert rows.problem.nunique() == 8
    # At the run's temperature: what the run itself measured before and after training.
    logged = [json.loads(line) for line in (tmp_path / "exact" / "metrics.jsonl").read_text().splitlines()]
    for name, point in zip(("base", "policy"), logged, strict=True):
        assert result["metrics"][name]["pass@64"] == pytest.approx(point["pass@64"], rel=1e-5)
    lines = (folder / "entrances.md").read_text().splitlines()
    assert sum(line.startswith("## ") for line in lines) == 6
    difference = result["metrics"]["policy"]["pass@64"] - result["metrics"]["base"]["pass@64"]
    assert difference != 0
    assert rows.filter(like="part_of").sum().sum() / 8 == pytest.approx(difference, abs=1e-12)
    for text in ("locks, 8 problems", "change of pass@64 [points]", "Cover@τ", "outside", str(folder)):
        assert text in said.replace("\n", "") or text in said


def test_what_cannot_be_compared_is_one_line(tmp_path):
    for overrides, message in (
        ((), "compares a run with the model before training: give run=FOLDER"),
        (("run=x", "data_dir=y"), "data_dir=y: coverage=entrances reads no solutions"),
    ):
        with pytest.raises(ConfigError, match=message):
            cover(composed(LOCKS, *overrides, config_name="coverage"))
    for setting, message in (
        ({"k": 0}, "coverage.k is 0"),
        ({"base_weights": [0, 0.5]}, r"coverage.base_weights is \[0, 0.5\]"),
    ):
        with pytest.raises(ConfigError, match=message):
            EntranceCoverage(name="entrances", **setting)
    for arguments, message in (
        (("data=arithmetic", *TINY, "model=tiny", "engine=transformers"), "right answers cannot be listed"),
        ((*OF_LOCKS, "data.num_validation=0"), "holds no problems out"),
    ):
        folder = tmp_path / message.replace(" ", "_")
        start_script("train.py", *arguments, f"hydra.run.dir={folder}").finish()
        with pytest.raises(AssertionError, match=message):
            start_script("coverage", LOCKS, f"run={folder}").finish()


def test_samples_find_the_exact_entrances(tmp_path):
    start_script("train.py", *OF_LOCKS, "temperature=0.8", f"hydra.run.dir={tmp_path}", "optimizer.lr=1e-2").finish()
    start_script("coverage", LOCKS, f"run={tmp_path}", "coverage.base_weights=[]", "coverage.k=8").finish()
    sampling = ("engine=transformers", "coverage.k=8", "coverage.num_samples=200", "coverage.num_forced=200")
    said = start_script("coverage", "coverage=sampled_entrances", f"run={tmp_path}", *sampling).finish()
    folders = [tmp_path / "evaluation" / f"coverage_{name}" for name in ("entrances", "sampled_entrances")]
    exact, found = (pd.read_csv(folder / "entrances.csv") for folder in folders)
    exact["problem"] = exact.problem.str.rstrip(":")
    both = found.assign(problem=found.problem.str.rstrip(":")).merge(exact, on=["problem", "entrance"])
    assert len(both) == len(found)
    assert len(found) > 0.8 * len(exact)
    for name in ("base", "policy"):
        assert both[f"{name}_mass_x"].tolist() == pytest.approx(both[f"{name}_mass_y"].tolist(), rel=1e-4)
        skill = both[f"{name}_forced_pass@1_y"]
        error = (both[f"{name}_forced_pass@1_x"] - skill) / (skill * (1 - skill) / 200 + 1e-6) ** 0.5
        assert error.abs().max() < 5
        assert error.mean() == pytest.approx(0, abs=3 / len(both) ** 0.5)
    of_exact, result = (json.loads((folder / "entrances.json").read_text()) for folder in folders)
    for part, value in of_exact["change"].items():
        assert result["change"][part]["low"] <= value <= result["change"][part]["high"], part
    assert "8 problems, 8 solved by either model" in said
    # The reward reads the puzzle of the data.
    assert "locks" in start_script("evaluate.py", f"run={tmp_path}", "engine=transformers", "num_samples=2").finish()


def test_what_cannot_be_sampled_is_one_line():
    for setting, message in (({"entrance_tokens": 0}, "entrance_tokens is 0"), ({"k": 65}, "k is 65")):
        with pytest.raises(ConfigError, match=message):
            SampledEntranceCoverage(name="sampled_entrances", **setting)
