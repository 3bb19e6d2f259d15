import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from apo_lab.statistics.gradient_geometry import (
    count_sketch,
    geometry,
    logit_products,
    merged_slopes,
    picks_of,
    split_half,
)

TERMS = ["reward", "push", "pull"]


def products(rows):
    vectors = torch.tensor(rows, dtype=torch.float64)
    return vectors @ vectors.T


@settings(max_examples=50)
@given(st.lists(st.lists(st.floats(-5, 5), min_size=4, max_size=4), min_size=3, max_size=3))
def test_shares_sum_to_one_and_what_cancels_lies_between_0_and_1(rows):
    found = geometry(products(rows), TERMS, [])
    length = torch.tensor(rows, dtype=torch.float64).sum(0).norm()
    if length < 1e-3:
        return
    assert sum(found[f"share_{name}"] for name in TERMS) == pytest.approx(1, abs=1e-9)
    assert -1e-9 <= found["cancelled"] <= 1
    assert all(
        -1 - 1e-9 <= found[f"cos_{pair}"] <= 1 + 1e-9 or math.isnan(found[f"cos_{pair}"]) for pair in ("push_pull",)
    )


def test_the_numbers_of_three_vectors():
    """(3, 0), (0, 4), (−3, 0): their sum is (0, 4). Of lengths 10 in all 6 cancel; at right angles 10 − √34 would."""
    found = geometry(products([[3, 0], [0, 4], [-3, 0], [0, 2]]), TERMS, ["support"])
    expected = {
        "norm_reward": 3.0,
        "cos_reward_push": 0.0,
        "cos_reward_pull": -1.0,
        "share_push": 1.0,
        "share_pull": 0.0,
        "cancelled": 0.6,
        "cancelled_if_orthogonal": 1 - math.sqrt(34) / 10,
        "align_push_support": 1.0,
        "align_pull_support": 0.0,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_a_term_of_no_length_has_no_angle():
    found = geometry(products([[1, 0], [0, 0], [0, 1]]), TERMS, [])
    assert math.isnan(found["cos_reward_push"])
    assert found["share_push"] == 0


def test_products_by_picks_are_those_of_whole_vectors():
    generator = torch.Generator().manual_seed(2)
    probs = torch.randn(50, 5, generator=generator, dtype=torch.float64).softmax(1)
    token_ids = torch.randint(0, 5, (50,), generator=generator)
    anchor_ids = torch.stack([torch.randperm(5, generator=generator)[:4] for _ in range(50)])
    anchor_ids[0, 2:] = -1
    slopes, anchor_slopes = (torch.randn(2, 50, *shape, generator=generator).double() for shape in ((), (4,)))
    anchor_slopes[:, anchor_ids < 0] = 0
    logprobs = probs.log().gather(1, token_ids[:, None])[:, 0]
    anchors = probs.log().gather(1, anchor_ids.clamp(min=0)).masked_fill(anchor_ids < 0, -torch.inf)
    picked, is_sampled = picks_of(token_ids, anchor_ids, logprobs, anchors)
    merged = torch.stack([merged_slopes(*pair, is_sampled) for pair in zip(slopes, anchor_slopes, strict=True)])
    found, gap = logit_products(merged, picked)

    whole = torch.zeros(2, 50, 5, dtype=torch.float64)
    identity = torch.eye(5, dtype=torch.float64)
    for v in range(2):
        for t in range(50):
            whole[v, t] = slopes[v, t] * (identity[token_ids[t]] - probs[t])
            for k in range(4):
                if anchor_ids[t, k] >= 0:
                    whole[v, t] += anchor_slopes[v, t, k] * (identity[anchor_ids[t, k]] - probs[t])
    expected = torch.einsum("atv,btv->abt", whole, whole)
    totals = merged.sum(2)
    # What is not picked enters by Σ π² alone.
    missing = probs.square().sum(1) - picked.square().sum(1)
    torch.testing.assert_close(found + totals[:, None] * totals[None] * missing, expected, atol=1e-12, rtol=0)
    assert (missing >= -1e-15).all()
    assert (missing <= gap + 1e-12).all()


def test_a_sketch_keeps_angles_to_one_over_the_root_of_its_size():
    generator = torch.Generator().manual_seed(1)
    first, second = torch.randn(2, 20_000, generator=generator).double()
    third = first + 0.5 * second
    pair = [count_sketch([v[:5000].view(50, 100), v[5000:]], 2**12, seed=3) for v in (first, third)]
    true = torch.cosine_similarity(first, third, dim=0)
    assert abs(torch.cosine_similarity(*pair, dim=0) - true) < 4 / 64
    assert not torch.equal(pair[0], count_sketch([first], 2**12, seed=4))


def test_noise_shrinks_a_cosine_and_halves_of_the_prompts_correct_it():
    """Two terms of cosine −.8, each half with noise of its own as long as they are: the plain one is near −.4."""
    generator = torch.Generator().manual_seed(4)
    size = 20_000
    a, rest = torch.nn.functional.normalize(torch.randn(2, size, generator=generator).double(), dim=1)
    b = -0.8 * a + 0.6 * rest
    noise = torch.randn(2, 2, size, generator=generator).double() / size**0.5
    first, second = torch.stack([a, b]) + noise[0], torch.stack([a, b]) + noise[1]
    found = split_half(first, second, ["push", "pull"])
    assert found["reliability_push"] == pytest.approx(0.5, abs=0.05)
    assert found["steady_cos_push_pull"] == pytest.approx(-0.8, abs=0.06)
    assert torch.cosine_similarity(first[0], first[1], dim=0) == pytest.approx(-0.4, abs=0.05)
