import math
from dataclasses import replace

import pytest
import torch

from apo_lightning.errors import ConfigError
from apo_lightning.losses import APO, GRPO
from apo_lightning.types import Anchor, Needs
from apo_methods.diagnostics import Reachability
from factories import make_step


def anchored(statuses, lengths, inside, cut=()):
    """`inside`: for each token the slot at which it stands among its anchors, or None."""
    ids = torch.full((sum(lengths), 3), 900)
    tokens = [10 * b + t for b, length in enumerate(lengths) for t in range(length)]
    for row, (token, slot) in enumerate(zip(tokens, inside, strict=True)):
        if slot is not None:
            ids[row, slot] = token
    anchor = Anchor(token_ids=ids, ref_logprobs=torch.zeros(ids.shape), logprobs=torch.zeros(ids.shape))
    step = make_step(statuses, group_size=len(statuses), lengths=lengths, anchor=anchor)
    completions = tuple(
        replace(completion, finish_reason="length" if b in cut else "stop")
        for b, completion in enumerate(step.rollouts.completions)
    )
    return replace(step, rollouts=replace(step.rollouts, completions=completions))


def watching(loss, **settings):
    callback = Reachability(**settings)
    callback.prepare(loss)
    return callback


def test_the_numbers_derived_by_hand():
    """Of the four correct completions the last was cut off; token 20 of the third stands at slot 2, outside K = 2."""
    statuses = ("correct", "incorrect", "correct", "correct")
    step = anchored(statuses, [2, 1, 1, 1], [0, 1, None, 2, None], cut=[3])
    metrics = watching(APO(anchor_size=2)).on_step(step)
    inside = {f"reach/correct_inside@{length}": 0.5 for length in (16, 64, 256)}
    outside = {"reach/correct_outside": 0.5, "reach/correct_outside_tokens": 1 / 3}
    assert metrics == pytest.approx({"reach/num_correct": 2, **outside, **inside})
    assert watching(APO(anchor_size=3)).on_step(step)["reach/correct_outside"] == 0


def test_an_exit_after_the_length_that_is_asked_for_is_none_there():
    step = anchored(("correct", "incorrect"), [20, 1], [*[0] * 17, None, 0, 0, 0])
    metrics = watching(APO(anchor_size=1)).on_step(step)
    assert (metrics["reach/correct_inside@16"], metrics["reach/correct_inside@64"]) == (1, 0)


def test_no_correct_completion_is_no_number():
    metrics = watching(GRPO()).on_step(anchored(("incorrect", "incorrect"), [1, 1], [0, 0]))
    assert metrics.pop("reach/num_correct") == 0
    assert all(math.isnan(value) for value in metrics.values())


def test_completions_of_all_ranks_count_alike(monkeypatch):
    from apo_methods.diagnostics import reachability

    step = anchored(("correct", "incorrect"), [2, 1], [0, None, 0])
    monkeypatch.setattr(reachability, "items_of_all_ranks", lambda exits: [*exits, 1, 2**63 - 1, 2**63 - 1])
    monkeypatch.setattr(reachability, "from_all_ranks", lambda part: [part, (1, 8)])
    metrics = watching(APO(anchor_size=1)).on_step(step)
    assert metrics["reach/num_correct"] == 4
    assert metrics["reach/correct_outside"] == 0.5
    assert metrics["reach/correct_outside_tokens"] == pytest.approx(2 / 10)


def test_its_anchors_are_the_losss_own():
    assert watching(APO(anchor_size=4)).needs == Needs(anchor_size=4)
    assert watching(GRPO()).needs == Needs(anchor_size=8)
    assert watching(APO(), anchor_size=16).needs == Needs(anchor_size=16)
    with pytest.raises(ConfigError, match=r"reachability\.anchor_size is 0"):
        Reachability(anchor_size=0)
    with pytest.raises(ConfigError, match="no anchors"):
        Reachability().on_step(make_step())
