"""What a frozen model says of each token, and its own top K: against full logits, and its ties."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from apo_lightning.errors import ConfigError
from apo_lightning.logprobs import head, reference_statistics, token_statistics
from factories import head_problem as problem


def test_the_reference_returns_its_largest_probabilities_in_descending_order():
    hidden, weight, token_ids, _ = problem(num_tokens=20)
    statistics = reference_statistics(hidden, weight, token_ids, 4, temperature=0.7)
    logprobs = (hidden @ weight.T / 0.7).log_softmax(1).detach()
    values, ids = logprobs.topk(4)
    assert torch.equal(statistics.anchor_ids, ids)
    torch.testing.assert_close(statistics.anchor_logprobs, values)
    torch.testing.assert_close(statistics.logprobs, logprobs.gather(1, token_ids[:, None])[:, 0])
    assert not statistics.logprobs.requires_grad


def test_the_reference_breaks_ties_of_the_head_itself():
    """Four equal rows in the head, of few bits: in whatever order they are summed, logits are equal to the last bit."""
    rows, hidden = (
        torch.randn(count, 4, generator=torch.Generator().manual_seed(seed)).mul(8).round() / 8
        for seed, count in enumerate((3, 9))
    )
    weight = rows.repeat(4, 1)
    statistics = reference_statistics(hidden, weight, torch.zeros(9, dtype=torch.long), 6)
    for row, best in zip(statistics.anchor_ids.tolist(), (hidden @ weight[:3].T).tolist(), strict=True):
        first, second, _ = sorted(range(3), key=lambda v, best=best: -best[v])
        assert row == [first, first + 3, first + 6, first + 9, second, second + 3]


@given(
    seed=st.integers(0, 2**32 - 1),
    num_tokens=st.integers(0, 9),
    vocab=st.integers(1, 30),
    k=st.integers(1, 8),
    tile=st.tuples(st.integers(1, 4), st.integers(1, 40)),
)
def test_ties_go_to_the_lower_id_whatever_the_tiles(seed, num_tokens, vocab, k, tile):
    """Logits of 1 to 3 tie everywhere, at the edges of tiles too, and products of whole numbers are exact."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(1, 4, (num_tokens, vocab), generator=generator).float()
    k = min(k, vocab)
    expected = [sorted(range(vocab), key=lambda v, row=row: (-row[v], v))[:k] for row in logits.tolist()]
    token_ids = torch.zeros(num_tokens, dtype=torch.long)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head, "tile_shape", lambda *_: tile)
        statistics = reference_statistics(torch.eye(num_tokens, num_tokens), logits.T.contiguous(), token_ids, k)
    assert statistics.anchor_ids.tolist() == expected


class Waits(TorchDispatchMode):
    """How often the host must have a number of the device's to go on."""

    number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.number += func.overloadpacket in (torch.ops.aten.nonzero, torch.ops.aten._local_scalar_dense)
        return func(*args, **(kwargs or {}))


def test_no_tile_waits_for_what_it_found():
    hidden, weight, token_ids, _ = problem(num_tokens=64, vocab=2000, dtype=torch.float32)
    with Waits() as waits:
        reference_statistics(hidden, weight, token_ids, 4)
    assert waits.number == 0


def test_tokens_of_probability_zero_are_no_anchors():
    hidden = torch.tensor([[1e30, 1.0]])
    weight = torch.tensor([[-1e30, 0.0], [0.0, 1.0], [0.0, 2.0], [-1e30, 0.0]])
    statistics = reference_statistics(hidden, weight, torch.tensor([1]), 4)
    assert statistics.anchor_ids.tolist() == [[2, 1, -1, -1]]
    assert (statistics.anchor_logprobs[0, 2:] == -torch.inf).all()
    torch.testing.assert_close(statistics.anchor_logprobs[0, :2].exp().sum(), torch.tensor(1.0))


def test_the_policy_agrees_with_the_reference_at_equal_weights():
    hidden, weight, token_ids, _ = problem(dtype=torch.float32)
    reference = reference_statistics(hidden, weight, token_ids, 5)
    policy = token_statistics(hidden, weight, token_ids, reference.anchor_ids)
    assert torch.equal(policy.logprobs, reference.logprobs)
    assert torch.equal(policy.anchor_logprobs, reference.anchor_logprobs)


def test_more_anchors_than_tokens_are_refused():
    with pytest.raises(ConfigError, match="anchor_size is 18: the vocabulary has 17"):
        reference_statistics(*problem()[:3], 18)
