"""Where a loss says that it can have a gradient, it may have one; where it says not, it has none."""

from dataclasses import dataclass, replace

import pytest
import torch

from apo_lightning.losses import APO, GRPO, GRPOKL, PolicyLoss
from apo_lightning.losses.policy_loss import masks_of
from apo_lightning.types import LossOutput, Needs
from loss_cases import make_case, value_and_gradient

ADVANTAGES = torch.tensor([-1.0, 0.0, 0.5, 0.0])
IS_CORRECT = torch.tensor([False, False, True, True])
ALL = [True, True, True, True]
MOVED = [True, False, True, False]


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (GRPO(), MOVED),
        (GRPO(entropy_coef=0.01), ALL),
        (GRPO(entropy_coef=-0.01), ALL),
        (APO(), MOVED),
        (APO(trigger="incorrect"), MOVED),
        (APO(entropy_coef=0.01), ALL),
        (GRPOKL(kl_coef=0.01), ALL),
        (GRPOKL(kl_coef=0.0), MOVED),
        (GRPOKL(kl_coef=0.01, error_only=True), MOVED),
        (GRPOKL(kl_coef=0.0, entropy_coef=0.1), ALL),
    ],
)
def test_a_token_can_have_a_gradient_where_a_term_of_the_loss_reads_it(loss, expected):
    assert masks_of(loss, ADVANTAGES, IS_CORRECT).gradient.tolist() == expected


@pytest.mark.parametrize("loss", [GRPO(), APO(), GRPOKL(error_only=True), GRPOKL(kl_coef=0.0), GRPO(entropy_coef=0.1)])
def test_outside_the_gradient_mask_the_gradient_is_exactly_zero(loss):
    case = make_case("gradient mask")
    case = replace(case, advantages=torch.where(torch.arange(len(case.advantages)) % 2 == 0, case.advantages, 0.0))
    mask = loss.gradient_mask(case.advantages, case.is_correct)
    _, gradient, _ = value_and_gradient(loss, case)
    assert (gradient[~mask] == 0).all()
    assert (gradient[mask] != 0).any()


@dataclass(frozen=True, kw_only=True)
class WithSomethingOnTop(GRPO):
    def __call__(self, inputs):
        return LossOutput(per_token=super().__call__(inputs).per_token + inputs.logprobs)


class Mixin:
    def __call__(self, inputs):
        return LossOutput(per_token=inputs.logprobs)


@dataclass(frozen=True, kw_only=True)
class Mixed(Mixin, GRPO):
    pass


@dataclass(frozen=True, kw_only=True)
class ThatKnowsBetter(WithSomethingOnTop):
    def gradient_mask(self, advantages, is_correct):
        return advantages > 0


@dataclass(frozen=True, kw_only=True)
class ThatTakesItOver(WithSomethingOnTop):
    gradient_mask = GRPO.gradient_mask


@dataclass(frozen=True, kw_only=True)
class OtherDefaultsOfIt(WithSomethingOnTop):
    clip_eps: float = 0.1


@dataclass(frozen=True, kw_only=True)
class OtherPull(APO):
    def __call__(self, inputs):
        return LossOutput(per_token=inputs.logprobs + inputs.anchor.logprobs.logsumexp(1))


class ReadsTheDivergence(PolicyLoss):
    @property
    def needs(self) -> Needs:
        return Needs(full_kl=True)

    def __call__(self, inputs):
        return LossOutput(per_token=inputs.full_kl)


class Written(PolicyLoss):
    def __call__(self, inputs):
        return LossOutput(per_token=inputs.logprobs)


@dataclass(frozen=True, kw_only=True)
class OtherDefaults(GRPO):
    clip_eps: float = 0.1


@pytest.mark.parametrize("loss", [WithSomethingOnTop(), Mixed(), OtherDefaultsOfIt()])
def test_a_loss_that_is_redefined_without_a_mask_of_its_own_is_run_everywhere_and_says_so(loss):
    assert isinstance(loss, PolicyLoss)
    assert masks_of(loss, ADVANTAGES, IS_CORRECT).gradient.tolist() == ALL
    assert loss.notice is not None
    assert loss.notice.startswith(f"{type(loss).__name__} redefines __call__ and not gradient_mask")
    assert "write `gradient_mask = GRPO.gradient_mask`" in loss.notice


def test_a_redefined_loss_reads_the_reference_everywhere_too():
    # Of the right answers APO itself reads nothing.
    assert masks_of(APO(), ADVANTAGES, IS_CORRECT).reference.tolist() == [True, False, False, False]
    assert masks_of(OtherPull(), ADVANTAGES, IS_CORRECT).reference.tolist() == ALL
    lines = "`gradient_mask = APO.gradient_mask`, `reference_mask = APO.reference_mask`"
    assert lines in OtherPull().notice


@pytest.mark.parametrize("loss", [GRPO(), APO(), GRPOKL(), ThatKnowsBetter(), ThatTakesItOver(), OtherDefaults()])
def test_a_loss_whose_mask_is_its_own_has_nothing_to_say(loss):
    assert loss.notice is None


def test_a_loss_that_never_had_a_narrower_mask_has_lost_none():
    assert Written().notice is None
    assert masks_of(Written(), ADVANTAGES, IS_CORRECT).gradient.tolist() == ALL


def test_the_mask_of_another_loss_is_taken_over_by_name():
    assert masks_of(ThatTakesItOver(), ADVANTAGES, IS_CORRECT).gradient.tolist() == MOVED


def test_a_mask_of_ones_own_and_an_unchanged_loss_keep_theirs():
    assert masks_of(ThatKnowsBetter(), ADVANTAGES, IS_CORRECT).gradient.tolist() == [False, False, True, False]
    assert masks_of(OtherDefaults(), ADVANTAGES, IS_CORRECT).gradient.tolist() == MOVED


def test_a_loss_that_does_not_say_where_it_reads_the_reference_reads_it_everywhere():
    class Leaning(GRPO):
        gradient_mask = GRPO.gradient_mask

        @property
        def needs(self) -> Needs:
            return Needs(ref_logprobs=True)

    assert masks_of(Leaning(), ADVANTAGES, IS_CORRECT).reference.all()
    assert masks_of(ReadsTheDivergence(), ADVANTAGES, IS_CORRECT).reference.all()
    assert not masks_of(GRPO(), ADVANTAGES, IS_CORRECT).reference.any()
