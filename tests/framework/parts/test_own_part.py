"""What a part of a user's own may do without thought of ranks, and what it may not ask for."""

import os
import signal
from types import SimpleNamespace

import pytest
import torch

from apo_lightning.checkpoints.folder import complete_checkpoints
from apo_lightning.errors import ConfigError, Preempted
from apo_lightning.losses import GRPO
from apo_lightning.step.part import Part, Setup, check_parts
from apo_lightning.types import Needs
from own_parts import CountsSteps, LengthHead
from processes import start_script
from running import RUN, SIGNAL, on_one_and_two_ranks, run, training_rows, without_clock

OWN = "+algo.parts.own._target_=own_parts."


def test_a_module_of_a_parts_own_learns_the_same_on_two_ranks(tmp_path):
    alone, together = on_one_and_two_ranks(tmp_path, ["ddp_cpu2"], OWN + "LengthHead", "prompts_per_minibatch=2")
    for one, two in zip(alone, together, strict=True):
        for name in ("length_head/norm", "length_head/bias"):
            assert float(one[name]) == pytest.approx(float(two[name]), rel=1e-4)
    assert alone[0]["length_head/norm"] != alone[1]["length_head/norm"]


@pytest.mark.slow(40)
def test_a_rank_that_is_asked_to_stop_while_sampling_stops_all_and_they_sample_the_step_again(tmp_path):
    options = (*RUN, *SIGNAL, OWN + "StopsOneRank", "trainer=ddp_cpu2", "trainer.max_steps=3")

    def started(folder, *overrides, **environment):
        given = (*options, f"hydra.run.dir={tmp_path}/{folder}", *overrides)
        return start_script("train", *given, num_ranks=2, **environment)

    stopped = started("stopped", "checkpoint.save_every=null", STOPS="1")
    assert stopped.wait() == [75, 0], stopped.said
    assert "in step 2; kept: checkpoint step_000001" in stopped.said
    started("stopped", "resume=auto").finish()
    started("whole").finish()
    rows, expected = ([without_clock(row) for row in training_rows(tmp_path / run)] for run in ("stopped", "whole"))
    assert rows == expected
    assert all(float(row["train/grad_norm"]) > 0 for row in expected)


COUNTED = (*SIGNAL, OWN + "CountsSteps", "trainer.max_steps=3", "checkpoint.save_every=100")


def stopped_in(owner_method, monkeypatch, folder, kept):
    """Trains until step 2, in which the part samples again in this method, and is asked to stop meanwhile."""
    original = getattr(CountsSteps, owner_method)

    def sampling_again(part, setup, *args):
        found = original(part, setup, *args)
        if setup.ranks.trainer.global_step == 1:
            os.kill(os.getpid(), signal.SIGTERM)
            setup.sample(setup.prompts[:2], 4, step=2, stream="more")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(CountsSteps, owner_method, sampling_again)
        with pytest.raises(Preempted, match=f"in step 2; kept: {kept}"):
            run(folder, *COUNTED)


def test_what_a_part_took_from_rollouts_of_a_step_that_is_sampled_again_is_taken_back(tmp_path, monkeypatch):
    stopped_in("sampled", monkeypatch, tmp_path / "stopped", "checkpoint step_000001")
    final, rows = run(tmp_path / "stopped", *COUNTED, "resume=auto")
    assert [float(row["counts_steps/count"]) for row in rows] == [1, 2, 3]
    expected, whole_rows = run(tmp_path / "whole", *COUNTED)
    assert all(float(row["train/grad_norm"]) > 0 for row in whole_rows)
    assert all(torch.equal(final[name], expected[name]) for name in expected)


def test_weights_that_have_moved_are_not_saved_as_those_of_the_step_before(tmp_path, monkeypatch):
    stopped_in("metrics", monkeypatch, tmp_path, "nothing, no checkpoint was due")
    assert complete_checkpoints(tmp_path / "checkpoints") == ([], [])


def test_a_part_that_adds_to_the_loss_says_on_which_tokens():
    part = LengthHead()
    part.needs = Needs()
    with pytest.raises(ConfigError, match=r"the part 'length_head' adds to the loss of tokens and does not say on wh"):
        check_parts(GRPO().needs, [part], loss="GRPO")


@pytest.mark.parametrize(
    ("needs", "line"),
    [
        (Needs(ref_logprobs=True), r"the part 'own' has needs\.ref_logprobs, which is given to losses alone"),
        (Needs(columns=frozenset({"values"})), r"the part 'own' has needs\.columns"),
    ],
)
def test_a_part_is_refused_what_only_a_loss_is_given(needs, line):
    part = Part()
    part.name, part.needs = "own", needs
    with pytest.raises(ConfigError, match=line):
        check_parts(GRPO().needs, [part], loss="GRPO")


@pytest.mark.parametrize(
    ("of_loss", "of_part", "together"),
    [(None, None, "all"), (None, "nonzero_advantage", "all"), ("nonzero_advantage", None, "nonzero_advantage")],
)
def test_a_loss_that_names_no_tokens_may_have_a_gradient_on_all_and_a_part_on_none(of_loss, of_part, together):
    loss, part = (SimpleNamespace(needs=Needs(gradient_on=tokens)) for tokens in (of_loss, of_part))
    needs = Setup.needs.fget(SimpleNamespace(loss=loss, parts=[part]))  # pyright: ignore
    assert needs.gradient_on == together
