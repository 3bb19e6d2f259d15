"""From samples to what `results.json` says, by hand."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from apo_lightning.errors import ConfigError
from apo_lightning.evaluation import results
from apo_lightning.evaluation.card import card, warnings, write_card
from apo_lightning.evaluation.loading import read_result
from apo_lightning.evaluation.records import DataCard, ModelCard, Sample
from apo_lightning.evaluation.results import reported_k, summarise
from factories import make_sample, sampling_settings


def sample(problem, index, status="incorrect", extracted="7", **changes) -> Sample:
    given = {"prompt_id": problem, "sample": index, "status": status, "reward": float(status == "correct")}
    return make_sample(**given, extracted=extracted, **changes)


def result(samples, num_samples, **changes):
    return summarise(
        samples,
        benchmark="sums",
        model=ModelCard(name="tiny", path=None, weights_sha256="ab" * 32, dtype="float32"),
        data=DataCard(source="sums.jsonl", sha256="cd" * 32, num_problems=2, num_available=2),
        settings=sampling_settings(
            num_samples=num_samples,
            max_completion_tokens=20,
            seed=1,
            samples_per_batch=8,
            prompt="Q: {problem}",
            engine="TransformersEngine",
            reward="NumericReward",
        ),
        versions={"python": "3.11"},
        **{"measure_diversity": False, "encoder": None, **changes},
    )


TWO_PROBLEMS = [
    sample("a", 0, "correct", "7"),
    sample("a", 1, "incorrect", "8", num_tokens=20, finish_reason="length", entropy=1.0, max_prob=0.25),
    sample("a", 2, "incorrect", "$8$"),
    sample("a", 3, "unparsed", None),
    sample("b", 0, "correct", "1/2"),
    sample("b", 1, "correct", "0.5"),
    sample("b", 2, "incorrect", "9"),
    sample("b", 3, "timeout", "3"),
]


def test_without_answers_there_is_no_vote():
    # One right of four has the only vote: maj@4 would be pass@4.
    silent = [sample("a", i, "correct" if i == 0 else "incorrect", None) for i in range(4)]
    found = result(silent, 4)
    assert "maj@4" not in found.metrics
    assert "does not say" in found.notes["maj"]
    assert found.metrics["pass@4"].value == 1.0
    # Where no sample is right nobody can tell, and the vote is lost either way.
    assert result([sample("a", i, "unparsed", None) for i in range(4)], 4).metrics["maj@4"].value == 0.0


def test_an_answer_without_a_verdict_has_no_vote():
    group = [sample("a", 0, "correct", "7"), sample("a", 1, "unparsed", "x y"), sample("a", 2, "unparsed", "x y")]
    assert result([*group, sample("a", 3, "timeout", "x y")], 4).metrics["maj@4"].value == 1.0


def test_wrong_answers_are_compared_with_the_classes_of_most_votes(monkeypatch):
    compared = []
    monkeypatch.setattr(results, "equal", lambda one, other: compared.append((one, other)) or one == other.strip())
    answers = [str(number) for number in range(40)]
    assert results.answer_classes((text, "incorrect") for text in ["7", *answers, " 7"])[-1] == 1
    assert len(compared) <= results.MOST_COMPARED * 41


def test_every_metric_is_the_mean_over_problems_computed_by_hand():
    found = result(TWO_PROBLEMS, 4)
    values = {name: estimate.value for name, estimate in found.metrics.items()}
    # a: 1 of 4 correct, b: 2 of 4. pass@2: 1 − C(3,2)/C(4,2) = 1/2 and 1 − C(2,2)/C(4,2) = 5/6.
    assert values["pass@1"] == values["avg@4"] == pytest.approx((1 / 4 + 2 / 4) / 2)
    assert values["pass@2"] == pytest.approx(float((Fraction(1, 2) + Fraction(5, 6)) / 2))
    assert values["pass@4"] == 1.0
    # a: one correct vote, two for 8, so the majority is wrong; b: the two correct spellings vote together.
    assert values["maj@4"] == 0.5
    assert values["truncated_fraction"] == 1 / 8
    assert values["completion_tokens"] == (12.5 + 10) / 2
    assert values["entropy"] == (0.625 + 0.5) / 2
    assert values["max_prob"] == (0.625 + 0.75) / 2
    assert "support_coverage" not in values
    assert "diversity" not in values
    assert found.verdicts == {"correct": 3, "incorrect": 3, "unparsed": 1, "timeout": 1, "error": 0}
    assert (found.num_truncated, found.num_tokens) == (1, 90)
    assert [(p.prompt_id, p.num_samples, p.num_correct) for p in found.problems] == [("a", 4, 1), ("b", 4, 2)]
    assert len(found.pass_at_k) == 4
    assert found.by_problem["entropy"] == (0.625, 0.5)
    assert found.by_problem.keys() == found.metrics.keys() - {"pass@1", "pass@2", "pass@4"}
    assert all(e.low < e.value <= e.high or e.low <= e.value < e.high for e in found.metrics.values())


def test_completions_of_one_length_have_an_interval_between_the_limits_of_a_length():
    cut = [sample(f"p{i}", 0, num_tokens=20, finish_reason="length") for i in range(10)]
    # Half an unseen problem of no tokens: 20 times the 0.025-quantile of Beta(10, 1/2), which is 0.77.
    tokens = result(cut, 1).metrics["completion_tokens"]
    assert (tokens.value, round(tokens.low / 20, 2), tokens.high) == (20.0, 0.77, 20.0)


def test_what_was_not_measured_is_absent_and_what_was_is_reported():
    found = result([replace(s, entropy=None, support_coverage=0.9, outside_support=0.1) for s in TWO_PROBLEMS], 4)
    assert "entropy" not in found.metrics
    assert found.metrics["support_coverage"].value == pytest.approx(0.9)
    assert found.metrics["outside_support"].value == pytest.approx(0.1)


def test_equal_texts_have_no_diversity_and_full_similarity():
    def encoder(texts):
        return torch.tensor([[1.0, len(set(text))] for text in texts])

    samples = [replace(s, text="the answer is 7 of course") for s in TWO_PROBLEMS]
    found = result(samples, 4, measure_diversity=True, encoder=encoder)
    assert found.metrics["diversity"].value == pytest.approx(0.0, abs=1e-9)
    assert found.metrics["semantic_similarity"].value == pytest.approx(1.0)
    assert {"diversity", "semantic_similarity"} <= found.notes.keys()


def test_powers_of_two_and_the_whole_budget_are_reported():
    assert reported_k(1) == [1]
    assert reported_k(16) == [1, 2, 4, 8, 16]
    assert reported_k(20) == [1, 2, 4, 8, 16, 20]


def test_no_samples_are_no_result():
    with pytest.raises(ConfigError, match="no samples"):
        result([], 4)


def test_the_card_says_what_a_reader_must_look_out_for(tmp_path):
    found = result(TWO_PROBLEMS, 4)
    assert warnings(found) == [
        "12.5% of the samples were cut at 20 tokens",
        "no answer was found in 12.5% of the samples; they count as wrong",
        "the verifier ran out of time on 1 of 8 samples; they count as wrong",
    ]
    text = card(found)
    assert text.startswith("# tiny on sums\n")
    assert "| pass@1 | 37.50 % | [" in text
    assert "3 correct, 3 incorrect, 1 unparsed, 1 timeout, 0 error" in text
    write_card(tmp_path, found)
    assert read_result(tmp_path / "results.json") == found
    assert (tmp_path / "card.md").read_text() == text
