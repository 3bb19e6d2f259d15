import json

import pytest
import torch
from hydra.utils import instantiate

from apo_lab.diagnostics import TokenWriter
from apo_lab.diagnostics.token_writer import token_lines
from apo_lightning.common.files import to_json
from apo_lightning.errors import ConfigError
from apo_lightning.losses import APO, GRPO
from apo_lightning.types import Anchor, Needs
from composing import composed
from factories import make_step


@pytest.fixture
def step():
    """Token 0 of completion 0; tokens 10 and 11 of completion 1, of which the reference was not asked about 11.

    token 0:  T_2 = {0: .5 → .6, 7: .3 → .1}, S = {7}: r = .1/.3 = 1/3
    token 10: T_2 = {7: .4 → .2, 8: .2 → .1}, y outside: r = .3/.6 = 1/2
    """
    ref, own = ([[0.5, 0.3], [0.4, 0.2], [0.0, 0.0]], [[0.6, 0.1], [0.2, 0.1], [0.0, 0.0]])
    anchor = Anchor(
        token_ids=torch.tensor([[0, 7], [7, 8], [-1, -1]]),
        ref_logprobs=torch.tensor(ref).log(),
        logprobs=torch.tensor(own).log(),
    )
    return make_step(
        lengths=[1, 2], anchor=anchor, ref_logprobs=torch.tensor([0.5, 0.05, torch.nan]).log(), entropy=[1.0, 2.0, 4.0]
    )


def test_a_line_says_what_policy_and_reference_said_of_each_token(step):
    lines = json.loads(to_json(token_lines(step, anchor_size=2)))
    assert [(line["prompt_id"], line["sample"], line["token_ids"]) for line in lines] == [
        ("p0", 0, [0]),
        ("p0", 1, [10, 11]),
    ]
    # log .5 = -0.69315, log .6 = -0.51083, log .3 = -1.20397, log .1 = -2.30259
    assert lines[0]["anchors"] == [[[0, -0.69315, -0.51083], [7, -1.20397, -2.30259]]]
    assert (lines[0]["logprob"], lines[0]["ref_logprob"]) == ([-0.5], [-0.69315])
    assert [line["anchor_ratio"] for line in lines] == [[0.33333], [0.5, None]]
    assert [line["advantage"] for line in lines] == [[1.0], [-1.0, -1.0]]
    assert lines[1]["entropy"] == [2.0, 4.0]
    assert (lines[1]["anchors"][1], lines[1]["ref_logprob"][1]) == ([], None)


def test_the_sampled_token_counts_where_the_loss_counts_it(step):
    # S = {0, 7}: (.6 + .1)/(.5 + .3) = 7/8
    [line, _] = token_lines(step, anchor_size=2, exclude_sampled=False)
    assert line["anchor_ratio"] == [0.875]


def test_it_asks_for_the_losses_own_anchors_or_the_papers_or_those_that_are_given():
    for given, loss, size in ((None, APO(anchor_size=4), 4), (None, GRPO(), 8), (2, APO(anchor_size=4), 2)):
        writer = TokenWriter(anchor_size=given)
        writer.prepare(loss)
        assert writer.needs == Needs(ref_logprobs=True, anchor_size=size)
    with pytest.raises(ConfigError, match=r"token_writer.anchor_size is 0: give 1 or more"):
        TokenWriter(anchor_size=0)
    with pytest.raises(ConfigError, match="no reference statistics"):
        token_lines(make_step(), anchor_size=2)


def test_it_joins_the_default_callbacks_by_name():
    nodes = composed("callbacks=[default,token_writer]").callbacks
    assert list(nodes)[-1] == "token_writer"
    assert isinstance(instantiate(nodes.token_writer), TokenWriter)
    assert "token_writer" not in composed("callbacks=default").callbacks
