"""Recall of worked solutions: against full logits and a plain sort, over the problems that a hash chooses."""

import copy
import inspect
import json
import math
import random
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hydra.utils import get_class, instantiate
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing

from apo_lab.coverage.oracle import OracleCoverage, solved_problems, token_hits
from apo_lab.coverage.ratio import ratio_estimate
from apo_lightning.data.rows import Row
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.records import ModelCard
from apo_lightning.evaluation.scoring import pack
from apo_lightning.metrics.intervals import mean_intervals
from apo_lightning.model.policy import Policy
from apo_lightning.model.tokenizer import START_OF_TURN
from apo_lightning.types import Prompt
from composing import composed, names


def new_policy() -> Policy:
    spec = instantiate(composed("model=tiny").model, _convert_="all")
    return Policy(spec.load_model(seed=1), spec.load_tokenizer(), torch.float32)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return new_policy()


SOLUTIONS = ["3 + 4 = 7", "So the sum is \\boxed{12}.", "9 - 4 = 5, 5 - 1 = 4", "x"]


def row(number, solution, problem=None) -> Row:
    return Row(id=f"p{number}", problem=problem or f"What is problem {number}?", answer="7", solution=solution)


ROWS = [row(i, solution) for i, solution in enumerate(SOLUTIONS)]
CARD = ModelCard(name="tiny", path=None, weights_sha256="0", dtype="float32")


@torch.no_grad()
def naive_ranks(policy, row, instruction="{problem}"):
    """Of every solution token, by a sort of its whole row of float64 logits, ties to the lower id."""
    tokenizer = policy.tokenizer
    turn = [{"role": "user", "content": instruction.replace("{problem}", row.problem)}]
    text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer.encode(text, add_special_tokens=False)
    solution = tokenizer.encode(row.solution, add_special_tokens=False)
    logits = copy.deepcopy(policy.model).double()(torch.tensor([prompt + solution])).logits[0]
    ranks = []
    for t, token in enumerate(solution):
        values = logits[len(prompt) - 1 + t].tolist()
        ranks.append(sorted(range(len(values)), key=lambda v: (-values[v], v)).index(token))
    return ranks


@pytest.mark.parametrize("tokens_per_microbatch", [1, 70, 4096])
def test_recall_is_the_share_of_solution_tokens_with_a_rank_below_k(policy, tokens_per_microbatch):
    instruction = "Solve: {problem}"
    coverage = OracleCoverage(
        name="x",
        path="x.jsonl",
        anchor_sizes=[16, 1, 4],
        tokens_per_microbatch=tokens_per_microbatch,
        instruction=instruction,
    )
    found = coverage.measure(policy, solved_problems(ROWS, None, where="x"), None, CARD)
    ranks = [rank for one in ROWS for rank in naive_ranks(policy, one, instruction)]
    assert found.num_tokens == len(ranks) == sum(map(len, SOLUTIONS))
    assert list(found.recall) == [1, 4, 16]
    for k, estimate in found.recall.items():
        assert estimate.value == sum(rank < k for rank in ranks) / len(ranks)
        assert estimate.low <= estimate.value <= estimate.high
    assert 0 < found.recall[16].value < 1


def test_whole_solutions_are_those_without_a_token_beyond_k(policy):
    problems = solved_problems(ROWS, None, where="x")
    coverage = OracleCoverage(name="x", path="x.jsonl", anchor_sizes=[8, 64, 97], tokens_per_microbatch=70)
    found = coverage.measure(policy, problems, None, CARD)
    ranks = [naive_ranks(policy, one) for one in problems.rows]
    for k in (8, 64, 97):
        expected = [[rank < k for rank in of_one] for of_one in ranks]
        assert found.reachable[k].value == sum(all(one) for one in expected) / len(expected)
    # The whole vocabulary holds all four: a lower end of (1/40)^(1/4), exactly.
    assert found.reachable[97].low == pytest.approx(0.025**0.25)


def test_two_solutions_of_one_problem_are_one_problem_in_the_interval(policy):
    rows = [*ROWS, row(9, "3 + 4 = 7, again", problem=ROWS[0].problem)]
    found = OracleCoverage(name="x", path="x.jsonl", anchor_sizes=[97]).measure(
        policy, solved_problems(rows, None, where="x"), None, CARD
    )
    assert found.reachable[97].value == 1
    assert found.reachable[97].low != pytest.approx(0.025**0.2)


def test_ties_go_to_the_lower_id():
    policy = new_policy()
    with torch.no_grad():
        policy.head_weight.zero_()
    # All logits are 0, so a token's rank is its id: of 3, 4, 5 and 6, two are below 5 and three below 6.
    one = Prompt(id="a", problem="", answer="", text="", token_ids=(9, 9))
    assert token_hits(policy, pack([one], [[3, 4, 5, 6]]), [3, 5, 6], 4096).sum(0).tolist() == [0, 2, 3]


def test_a_base_model_reads_its_own_template(policy):
    coverage = OracleCoverage(name="x", path="x.jsonl", anchor_sizes=[8])
    chat = coverage.measure(policy, solved_problems(ROWS, None, where="x"), None, CARD)
    base = coverage.measure(policy, solved_problems(ROWS, None, where="x"), "Q: {problem}\nA: ", CARD)
    assert (chat.num_tokens, chat.data) == (base.num_tokens, base.data)
    assert chat.recall != base.recall


def test_a_tokenizer_that_opens_every_text_does_not_open_the_solution():
    policy = new_policy()
    policy.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{START_OF_TURN} $A", special_tokens=[(START_OF_TURN, 1)]
    )
    assert policy.tokenizer.encode("x")[0] == 1
    found = OracleCoverage(name="x", path="x.jsonl").measure(
        policy, solved_problems([ROWS[0]], None, where="x"), "{problem}", CARD
    )
    assert found.num_tokens == len(SOLUTIONS[0])


def test_what_is_left_out_is_counted(policy):
    rows = [*ROWS, row(10, None), row(11, " \n"), row(12, "7" * 500)]
    coverage = OracleCoverage(name="x", path="folder/worked.jsonl", max_tokens=300)
    found = coverage.measure(policy, solved_problems(rows, None, where="x"), None, CARD)
    assert (found.data.num_available, found.num_without_solution, found.num_too_long) == (7, 2, 1)
    assert (found.data.num_problems, found.num_tokens) == (4, sum(map(len, SOLUTIONS)))
    assert (found.preset, found.data.source, found.model) == ("x", "worked.jsonl", CARD)


def test_the_result_states_prompt_and_data(policy):
    coverage = OracleCoverage(name="x", path="worked.jsonl", instruction="Solve: {problem}")
    found, other = (
        coverage.measure(policy, solved_problems(rows, None, where="x"), "Q: {problem}\nA: ", CARD)
        for rows in (ROWS, [*ROWS[:-1], row(3, "y")])
    )
    assert found.prompt == "Q: Solve: {problem}\nA: "
    assert found.data.sha256 != other.data.sha256
    renamed = [replace(one, id=f"line {i}") for i, one in enumerate(reversed(ROWS))]
    again = coverage.measure(policy, solved_problems(renamed, None, where="x"), "Q: {problem}\nA: ", CARD)
    assert again == found


def test_the_choice_does_not_depend_on_the_order_of_the_file():
    rows = [row(i, f"It is {i}.") for i in range(50)] + [row(50, "Or 7.", problem="What is problem 7?")]
    shuffled = random.Random(0).sample(rows, len(rows))
    chosen = solved_problems(rows, 20, where="x").rows
    assert chosen == solved_problems(shuffled, 20, where="x").rows
    assert [one.id for one in chosen] != [one.id for one in rows[:20]]
    assert chosen == solved_problems(rows, None, where="x").rows[:20]
    assert len(solved_problems(rows, 100, where="x").rows) == 51


def test_problems_without_any_solution_are_refused(tmp_path):
    path = tmp_path / "bare.jsonl"
    path.write_text(json.dumps({"problem": "1 + 1", "answer": "2"}) + "\n")
    with pytest.raises(ConfigError, match=r"none of the 1 problems of .*bare\.jsonl has a solution"):
        OracleCoverage(name="x", path=str(path)).load()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limit": 0}, "coverage.limit is 0"),
        ({"max_tokens": 0}, "coverage.max_tokens is 0"),
        ({"tokens_per_microbatch": -1}, "coverage.tokens_per_microbatch is -1"),
        ({"anchor_sizes": []}, r"coverage.anchor_sizes is \[\]"),
        ({"anchor_sizes": [1, 0]}, r"coverage.anchor_sizes is \[1, 0\]"),
    ],
)
def test_a_setting_that_cannot_work_is_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        OracleCoverage(name="x", path="x.jsonl", **settings)


def test_a_model_that_cannot_be_measured_is_named_before_it_is_loaded():
    coverage = OracleCoverage(name="x", path="x.jsonl", anchor_sizes=[1, 200], max_tokens=4096)
    with pytest.raises(ConfigError, match="anchor_sizes has 200 and the vocabulary of tiny has 100"):
        coverage.check_model("tiny", 100, 4096)
    with pytest.raises(ConfigError, match="max_tokens is 4096 and tiny reads 1024"):
        coverage.check_model("tiny", 200, 1024)
    coverage.check_model("tiny", 200, 4096)
    coverage.check_model("tiny", 200, None)


@pytest.mark.parametrize("name", sorted({*names("coverage")} - {"entrances", "sampled_entrances"}))
def test_the_keys_are_the_constructors_parameters_and_a_local_file_takes_the_place_of_the_hub(name, tmp_path, policy):
    path = tmp_path / "solved.jsonl"
    rows = [{"problem": f"{i}?", "answer": str(i), "solution": f"\\boxed{{{i}}}"} for i in range(9)]
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    overrides = (f"coverage={name}", f"coverage.path={path}", "coverage.limit=3")
    config = composed(*overrides, config_name="coverage").coverage
    for node in (config, config.hub):
        parameters = set(inspect.signature(get_class(node["_target_"])).parameters)
        assert {str(key) for key in node} - {"_target_", "_convert_"} == parameters
    coverage = instantiate(config)
    assert coverage.name == name
    coverage.check()
    found = coverage.measure(policy, coverage.load(), None, CARD)
    assert (found.data.num_available, found.data.num_problems, list(found.recall)) == (9, 3, [1, 4, 8, 16])


problems = st.lists(st.integers(1, 50).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), min_size=1)


@settings(max_examples=40)
@given(problems)
def test_every_token_weighs_the_same_and_the_interval_is_wide_and_possible(counts):
    hits, tokens = zip(*counts, strict=True)
    found = ratio_estimate(torch.tensor(hits), torch.tensor(tokens))
    assert found.value == pytest.approx(float(Fraction(sum(hits), sum(tokens))), abs=1e-12)
    assert 0 <= found.low < found.high <= 1


@pytest.mark.parametrize("share", [0.2, 0.5, 0.6])
def test_problems_of_one_length_have_the_interval_of_a_mean(share):
    # With equal denominators the ratio is the mean of the shares, and so is every resample of it.
    shares = torch.full((60,), share).double()
    shares[:20] = 0.4
    found = ratio_estimate(shares * 10, torch.full((60,), 10))
    (mean,) = mean_intervals(shares[:, None], lowest=-math.inf, highest=math.inf)
    assert found.value == pytest.approx(mean.mean)
    assert (found.low, found.high) == pytest.approx((mean.low, mean.high), abs=0.005)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_problems_that_all_agree_do_not_make_a_certainty(share):
    # Then an unseen problem may have any share, as for a mean in [0, 1].
    tokens = torch.arange(10, 50)
    found, mean = ratio_estimate(share * tokens.double(), tokens), mean_intervals(torch.full((40, 1), share))[0]
    assert (found.low, found.high) == pytest.approx((mean.low, mean.high), abs=0.02)
    assert found.low < found.high


def test_the_interval_agrees_with_the_delta_method_on_many_problems():
    # Var(r) ≈ Σ (x_i − r·n_i)² / (Σ n_i)²; the interval is then r ± 1.96 standard errors, and a little for the unseen.
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(50, 400, (4000,), generator=generator)
    share = 0.6 + 0.3 * torch.rand(4000, generator=generator)
    hits = (share * tokens).long()
    found = ratio_estimate(hits, tokens)
    ratio = hits.sum() / tokens.sum()
    error = 1.96 * ((hits - ratio * tokens).double().square().sum().sqrt() / tokens.sum()).item()
    assert found.value - found.low == pytest.approx(error, rel=0.1)
    assert found.high - found.value == pytest.approx(error, rel=0.1)


def test_the_global_generator_is_left_alone_and_the_answer_repeats():
    hits, tokens = torch.arange(30), torch.full((30,), 30)
    before = torch.get_rng_state()
    assert ratio_estimate(hits, tokens) == ratio_estimate(hits, tokens)
    assert torch.equal(torch.get_rng_state(), before)
