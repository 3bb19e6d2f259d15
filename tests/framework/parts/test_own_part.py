"""What a part of a user's own may do without thought of ranks, and what it may not ask for."""

import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest

from apo_lightning.errors import ConfigError, Preempted
from apo_lightning.losses import GRPO
from apo_lightning.step.part import Part, Setup, check_parts
from apo_lightning.types import Needs, Verdict
from own_parts import CountsSteps, LengthHead
from processes import start_script
from running import RUN, on_one_and_two_ranks, run

OWN = "+algo.parts.own._target_=own_parts."


def test_a_module_of_a_parts_own_learns_the_same_on_two_ranks(tmp_path):
    alone, together = on_one_and_two_ranks(tmp_path, ["ddp_cpu2"], OWN + "LengthHead", "prompts_per_minibatch=2")
    for one, two in zip(alone, together, strict=True):
        for name in ("length_head/norm", "length_head/bias"):
            assert float(one[name]) == pytest.approx(float(two[name]), rel=1e-4)
    assert alone[0]["length_head/norm"] != alone[1]["length_head/norm"]


def test_a_rank_that_is_asked_to_stop_while_sampling_stops_all_before_a_part_counts(tmp_path):
    run = (*RUN, OWN + "StopsOneRank", "trainer=ddp_cpu2", "checkpoint.save_every=1", f"hydra.run.dir={tmp_path}/run")
    script = start_script("train", *run, num_ranks=2)
    assert script.wait() == [75, 0], script.said
    assert "in step 2; kept: checkpoint step_000001" in script.said


@pytest.mark.parametrize("are", ["given up", "not judged"])
def test_what_a_part_took_from_rollouts_that_are_not_kept_is_taken_back(tmp_path, monkeypatch, are):
    own = (OWN + "CountsSteps", "trainer.max_steps=3", "checkpoint.save_every=100")
    sampled = CountsSteps.sampled

    def stopped(part, setup, batch, rollouts):
        found = sampled(part, setup, batch, rollouts)
        if rollouts.step != 2:
            return found
        os.kill(os.getpid(), signal.SIGTERM)
        error = Verdict(reward=0.0, status="error")
        return None if are == "given up" else replace(found, verdicts=[error] * len(found.verdicts))

    with monkeypatch.context() as patch:
        patch.setattr(CountsSteps, "sampled", stopped)
        with pytest.raises(Preempted, match="kept: checkpoint step_000001"):
            run(tmp_path, *own)
    rows = run(tmp_path, *own, "resume=auto")[1]
    assert [float(row["counts_steps/count"]) for row in rows] == [1, 2, 3]


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
