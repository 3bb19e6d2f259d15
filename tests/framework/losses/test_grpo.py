"""What all losses share: clipping, the entropy bonus, refusals."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from apo_lightning.errors import ConfigError
from apo_lightning.losses import APO, GRPO, GRPOKL
from apo_lightning.losses.functional import clipped_objective, is_clipped
from apo_lightning.types import Needs
from loss_cases import make_case


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "clipped"),
    [
        (1.0, 1.0, 1.0, False),
        (1.5, 1.0, 1.2, True),  # a good token gains no more than 1 + ε
        (0.5, 1.0, 0.5, False),  # and is brought back from below
        (0.5, -1.0, -0.8, True),  # a bad one gains nothing below 1 − ε
        (1.5, -1.0, -1.5, False),  # and is brought back from above: the `min` is one-sided
        (-0.3, -1.0, -0.8, True),  # a rectified ratio may be negative
        (1.5, 0.0, 0.0, False),
    ],
)
def test_the_clipped_objective(ratio, advantage, objective, clipped):
    rho, a = torch.tensor([ratio], requires_grad=True), torch.tensor([advantage])
    value = clipped_objective(rho, a, clip_eps=0.2)
    (gradient,) = torch.autograd.grad(value.sum(), rho)
    assert value.item() == pytest.approx(objective)
    assert gradient.item() == (0.0 if clipped else advantage)
    assert is_clipped(rho, a, clip_eps=0.2).item() is clipped


@given(
    st.floats(-5, 50, width=32), st.floats(-3, 3, width=32), st.sampled_from([None, 0.28]), st.sampled_from([None, 3.0])
)
def test_is_clipped_says_where_the_objective_is_flat(ratio, advantage, high, dual):
    clips = {"clip_eps": 0.2, "clip_eps_high": high, "dual_clip": dual}
    rho, a = torch.tensor([ratio], requires_grad=True), torch.tensor([advantage])
    (gradient,) = torch.autograd.grad(clipped_objective(rho, a, **clips).sum(), rho)
    assert is_clipped(rho, a, **clips).item() is bool(advantage != 0 and gradient.item() == 0)


def test_the_dual_clip_bounds_bad_tokens_alone():
    ratio, advantages = torch.tensor([10.0, 10.0]), torch.tensor([-1.0, 1.0])
    assert clipped_objective(ratio, advantages, clip_eps=0.2, dual_clip=3.0).tolist() == pytest.approx([-3.0, 1.2])


def test_a_missing_input_is_named():
    case = make_case("plain")
    with pytest.raises(ValueError, match=r"LossInputs\.entropy is None"):
        GRPO(entropy_coef=0.1)(case.inputs(Needs(), case.logits))


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (GRPO, {"clip_eps": 0.0}, "clip_eps is 0.0"),
        (GRPOKL, {"clip_eps": 1.5}, "clip_eps is 1.5"),
        (APO, {"clip_eps_high": 0.0}, "clip_eps_high is 0.0"),
        (GRPO, {"dual_clip": 1.0}, "dual_clip is 1.0"),
        (GRPO, {"entropy_coef": float("nan")}, "entropy_coef is nan"),
        (GRPOKL, {"kl_coef": -0.1}, "kl_coef is -0.1"),
        (GRPOKL, {"kl_estimator": "k4"}, "kl_estimator is 'k4': choose one of k1, k2, k3, k3_plus, full"),
        (GRPOKL, {"kl_clamp": 0.0}, "kl_clamp is 0.0"),
        (APO, {"push_coef": 1.0, "pull_coef": 0.3}, "push_coef - pull_coef is 0.7, not above 1 - clip_eps = 0.8"),
        (APO, {"push_coef": 1.05, "pull_coef": 0.25}, "push_coef - pull_coef is 0.8"),
        (APO, {"push_coef": 0.0}, "push_coef is 0.0"),
        (APO, {"push_coef": float("nan")}, "push_coef is nan"),
        (APO, {"pull_coef": -0.1}, "pull_coef is -0.1"),
        (APO, {"anchor_size": 0}, "anchor_size is 0"),
        (APO, {"trigger": "never"}, "trigger is 'never'"),
        (APO, {"trigger": "always", "clip_eps_high": 0.05}, "pull_coef is 0.1, not below the upper clip 0.05"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(kind, fields, message):
    with pytest.raises(ConfigError) as refusal:
        kind(**fields)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
