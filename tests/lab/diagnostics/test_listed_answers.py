"""Packing of listed answers: what all prompts begin with runs once where that is less, and no number changes."""

import pytest
import torch

from apo_lab.diagnostics.listed_answers import held_out_prompts, list_answers
from apo_lab.puzzles import Divisors, Locks, PuzzleSource
from apo_lightning.model.packing import PackedSequences
from composing import tiny_policy

EXAMPLES = "119:7<|im_end|>141:3<|im_end|>187:11<|im_end|>207:9<|im_end|>{problem}:"
BUDGET = 1024


def listed_and_whole(puzzle, template):
    """The listed answers, and the same answers packed after their whole prompts."""
    policy = tiny_policy()
    source = PuzzleSource(puzzle=puzzle, num_train=1, num_validation=24, max_template_tokens=64)
    prompts = held_out_prompts(source, policy.tokenizer, template)
    listed = list_answers(puzzle, prompts, policy, BUDGET)
    end = policy.tokenizer.eos_token_id
    texts = [(i, a.text) for i, answers in enumerate(listed.answers) for a in answers]
    encode = policy.tokenizer.encode
    completions = [(*encode(text, add_special_tokens=False), end) for _, text in texts]
    whole = PackedSequences(
        prompts=[p.token_ids for p in prompts], completions=completions, owners=[i for i, _ in texts]
    )
    return policy, listed, whole.microbatches(range(len(texts)), BUDGET, torch.device("cpu"))


def positions(microbatches):
    return sum(len(each.input_ids) for each in microbatches)


@pytest.mark.parametrize("puzzle", [Divisors(), Locks()])
def test_common_examples_run_once_and_leave_every_statistic_as_it_is(puzzle):
    policy, listed, whole = listed_and_whole(puzzle, EXAMPLES)
    assert positions(listed.microbatches) < 0.7 * positions(whole)
    found = listed.statistics(policy, temperature=0.7)
    expected = torch.zeros_like(found)
    with torch.no_grad():
        for each in whole:
            of = policy(each, temperature=0.7)
            expected[each.token_index] = torch.stack((of.logprobs, of.entropy, of.max_prob), dim=1).double()
    assert expected.all()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    targets = torch.zeros(len(listed.owner), dtype=torch.long)
    for each in listed.microbatches:
        targets[each.token_index] = each.targets
    assert torch.equal(
        targets, torch.cat([each.targets for each in whole])[torch.cat([e.token_index for e in whole]).argsort()]
    )


@pytest.mark.parametrize("puzzle", [Divisors(), Locks()])
def test_prompts_with_little_in_common_run_whole(puzzle):
    _, listed, whole = listed_and_whole(puzzle, "{problem}:")
    assert positions(listed.microbatches) == positions(whole)
