"""What the losses declare that they read, and where."""

import pytest

from apo_lightning.losses import APO, GRPO, GRPOKL, GSPO
from apo_lightning.losses.policy_loss import Importance
from apo_lightning.types import Needs

MOVED, ERRORS, WRONG = "nonzero_advantage", "negative_advantage", "incorrect"


@pytest.mark.parametrize(
    ("loss", "needs"),
    [
        (GRPO(), Needs(gradient_on=MOVED)),
        (GRPO(entropy_coef=0.01), Needs(gradient_on="all", entropy=True)),
        (GRPO(entropy_coef=-0.01), Needs(gradient_on="all", entropy=True)),
        (GRPO(importance=Importance("token_mask")), Needs(gradient_on=MOVED)),
        (GRPO(importance=Importance("sequence_mask")), Needs(gradient_on=MOVED, completions=True)),
        (GSPO(), Needs(gradient_on=MOVED, completions=True)),
        (APO(anchor_size=5), Needs(gradient_on=MOVED, anchor_size=5, reference_on=ERRORS)),
        (APO(trigger="incorrect"), Needs(gradient_on=MOVED, anchor_size=8, reference_on=WRONG)),
        (APO(trigger="always"), Needs(gradient_on=MOVED, anchor_size=8, reference_on=MOVED)),
        (APO(entropy_coef=1), Needs(gradient_on="all", entropy=True, anchor_size=8, reference_on=ERRORS)),
        (GRPOKL(), Needs(gradient_on="all", ref_logprobs=True, reference_on="all")),
        (GRPOKL(kl_coef=0.0), Needs(gradient_on=MOVED, ref_logprobs=True, reference_on="all")),
        (GRPOKL(error_only=True), Needs(gradient_on=MOVED, ref_logprobs=True, reference_on=ERRORS)),
        (GRPOKL(kl_estimator="full"), Needs(gradient_on="all", full_kl=True, reference_on="all")),
    ],
)
def test_a_loss_asks_for_what_its_terms_read_and_no_more(loss, needs):
    assert loss.needs == needs
