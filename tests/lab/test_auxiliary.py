"""DPH-RL's rehearsal: its values by hand, what it takes from a file of samples, and what a run with it does."""

import json
import math
import shutil
from dataclasses import asdict, replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from apo_lab.auxiliary import DIVERGENCES, Rehearsal
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.samples_file import read_samples
from apo_lightning.model.tokenizer import character_tokenizer
from apo_lightning.run.training import prepare
from apo_lightning.types import Prompt
from composing import composed
from rehearsing import base_samples
from running import RUN, SIGNAL, on_one_and_two_ranks, train_tiny, training_rows, weights, without_clock

# Two mini-batches a step and a rate at which the policy moves away.
MOVING = (*SIGNAL, "algo=dph", "optimizer.lr=1e-2", "algo.auxiliary.completions_per_minibatch=5")

# Adam with its usual ε divides a gradient by its own size, and so a rounded one by next to nothing. At this rate no
# token's ratio is near the clip, so that rounding decides on none.
LINEAR = ("optimizer.eps=1", "optimizer.lr=9e-2")


def value_and_slope(divergence, u, dtype=torch.float32):
    """f(u), and its slope in log π(y)."""
    logprobs = torch.tensor([0.1 * u], dtype=torch.float64).log().to(dtype).requires_grad_()
    term = Rehearsal(samples=None, divergence=divergence, coefficient=1)
    output = term(logprobs, torch.tensor([0.1], dtype=torch.float64).log().to(dtype))
    output.per_token.sum().backward()
    return output.per_token.item(), logprobs.grad.item()


@pytest.mark.parametrize(
    ("divergence", "u", "value", "slope"),
    [
        # df/d log π = u·f'(u): −1; u − 1; u·log(2u/(u + 1)).
        ("forward_kl_k1", 0.5, math.log(2), -1.0),
        ("forward_kl_k3", 0.5, 0.5 - 1 + math.log(2), -0.5),
        ("forward_kl_k3", 2.0, 2 - 1 - math.log(2), 1.0),
        ("forward_kl_k3", math.exp(-12), 10.0, 0.0),  # e⁻¹² + 11, beyond the cap
        ("js", 0.5, -0.5 * math.log(2) - 1.5 * math.log(0.75), 0.5 * math.log(2 / 3)),
        ("js", 2.0, 2 * math.log(2) - 3 * math.log(1.5), 2 * math.log(4 / 3)),
    ],
)
def test_values_and_slopes_by_hand(divergence, u, value, slope):
    assert value_and_slope(divergence, u) == pytest.approx((value, slope), abs=2e-6)


@given(log_u=st.floats(-9, 2), divergence=st.sampled_from(DIVERGENCES))
@example(log_u=0.0, divergence="forward_kl_k3")
@example(log_u=0.0, divergence="js")
def test_float32_is_as_good_as_float64(log_u, divergence):
    exact = value_and_slope(divergence, math.exp(log_u), torch.float64)
    u = math.exp(log_u)
    plain = {
        "forward_kl_k1": (-log_u, -1.0),
        "forward_kl_k3": (u - 1 - log_u, u - 1),
        "js": (u * log_u - (u + 1) * math.log((u + 1) / 2), u * math.log(2 * u / (u + 1))),
    }
    assert exact == pytest.approx(plain[divergence], rel=1e-9, abs=1e-12)
    assert value_and_slope(divergence, u) == pytest.approx(exact, rel=1e-5, abs=3e-6)


def test_over_a_whole_softmax_the_means_are_the_divergences():
    ref, policy = torch.tensor([0.6, 0.3, 0.1]).double(), torch.tensor([0.2, 0.5, 0.3]).double()
    forward = (ref * (ref / policy).log()).sum()
    middle = (ref + policy) / 2
    js = ((ref * (ref / middle).log()).sum() + (policy * (policy / middle).log()).sum()) / 2
    for divergence, expected in zip(DIVERGENCES, (forward, forward, 2 * js), strict=True):
        term = Rehearsal(samples=None, divergence=divergence, coefficient=0.5)
        assert (ref * term(policy.log(), ref.log()).per_token).sum().item() == pytest.approx(0.5 * expected.item())


@pytest.mark.parametrize(
    ("setting", "value"),
    [("divergence", "reverse_kl"), ("coefficient", -0.1), ("min_share_correct", 0.0), ("completions_per_minibatch", 0)],
)
def test_a_value_out_of_range_is_named(setting, value):
    with pytest.raises(ConfigError, match=f"algo.auxiliary.{setting} is {value}: give"):
        Rehearsal(samples=None, **{setting: value})


# ---------------------------------------------------------------------- what is taken from the file


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return base_samples(tmp_path_factory.mktemp("samples"))


def prompts_of(samples):
    ids = dict.fromkeys(sample.prompt_id for sample in samples)
    return [Prompt(id=i, problem=i, answer="", text=i, token_ids=(n, n + 1)) for n, i in enumerate(ids)]


def stored(folder, prompts, share=0.75, tokenizer=None, longest=8):
    term = Rehearsal(samples=str(folder), min_share_correct=share)
    return term.load(prompts, tokenizer or character_tokenizer(), longest)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75, 1.0])
def test_the_correct_samples_of_near_perfect_prompts_are_taken(folder, share):
    samples = read_samples(folder / "samples.jsonl")
    prompts = prompts_of(samples)[10:]
    found = stored(folder, prompts, share)
    expected = []
    for prompt in prompts:
        own = [sample for sample in samples if sample.prompt_id == prompt.id]
        correct = [sample for sample in own if sample.status == "correct"]
        expected += [(prompt.token_ids, s.text, s.logprob) for s in correct if len(correct) >= share * len(own)]
    decode, packed = character_tokenizer().decode, found.sequences
    rows = zip(packed.owners, packed.completions, found.logprobs, strict=True)
    taken = [(packed.prompts[p], decode(c), logprob) for p, c, logprob in rows]
    assert [(p, text.removesuffix("<|end|>"), s) for p, text, s in taken] == expected
    ended = [c[-1] == character_tokenizer().eos_token_id for c in packed.completions]
    assert 0 < sum(ended) < len(ended), "some of each kind"


def test_what_is_longer_than_the_run_samples_is_left_out(folder):
    prompts = prompts_of(read_samples(folder / "samples.jsonl"))
    whole, short = stored(folder, prompts, 0.25), stored(folder, prompts, 0.25, longest=7)
    fitting = [c for c in whole.sequences.completions if len(c) <= 7]
    assert 0 < len(fitting) < len(whole.sequences.completions)
    assert short.sequences.completions == fitting


class Pairs:
    """A tokenizer of two characters a token."""

    eos_token_id = 0

    def encode(self, text, add_special_tokens):
        return [1] * -(-len(text) // 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"folder": None}, "samples is None: give a folder"),
        ({"folder": "/nowhere"}, "samples is /nowhere: give a folder"),
        ({"prompts": []}, "has no sample of a training prompt"),
        ({"longest": 0}, "has no sample of a training prompt"),
    ],
)
def test_what_cannot_be_rehearsed_is_refused(folder, changes, words):
    prompts = changes.get("prompts", prompts_of(read_samples(folder / "samples.jsonl")))
    where = changes.get("folder", str(folder))
    with pytest.raises(ConfigError, match=words):
        Rehearsal(samples=where).load(prompts, character_tokenizer(), changes.get("longest", 8))


def test_another_tokenizer_is_refused_by_its_numbers_of_tokens(folder, monkeypatch):
    tokenizer = character_tokenizer()
    monkeypatch.setattr(type(tokenizer), "encode", Pairs.encode)
    with pytest.raises(ConfigError, match=r"only \d+ of \d+ samples in .* another tokenizer"):
        stored(folder, prompts_of(read_samples(folder / "samples.jsonl")), tokenizer=tokenizer)


# ---------------------------------------------------------------------- in a run


def rehearsed(tmp_path, folder, *overrides):
    final = weights(train_tiny(tmp_path, *MOVING, f"algo.auxiliary.samples={folder}", *overrides))
    return final, training_rows(tmp_path)


def test_without_a_coefficient_it_measures_and_the_training_is_grpos(tmp_path, folder):
    measured, rows = rehearsed(tmp_path / "zero", folder, "algo.auxiliary.coefficient=0")
    plain = weights(train_tiny(tmp_path / "grpo", *SIGNAL, "algo=grpo", "optimizer.lr=1e-2"))
    assert all(torch.equal(measured[name], values) for name, values in plain.items())
    for measuring, row in zip(rows, training_rows(tmp_path / "grpo"), strict=True):
        own = {key: value for key, value in without_clock(measuring).items() if not key.startswith("rehearsal/")}
        assert own == without_clock(row)
    assert float(rows[-1]["rehearsal/divergence"]) > 0.1


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_it_holds_the_policy_at_the_base(tmp_path, folder, divergence):
    options = (f"algo.auxiliary.divergence={divergence}", "trainer.max_steps=4")
    free, held = (rehearsed(tmp_path / f"{c}", folder, *options, f"algo.auxiliary.coefficient={c}")[1] for c in (0, 3))
    assert float(free[-1]["rehearsal/log_ratio"]) > 0.5
    assert float(held[-1]["rehearsal/log_ratio"]) < 0.75 * float(free[-1]["rehearsal/log_ratio"])


def test_micro_batches_do_not_change_it(tmp_path, folder):
    (whole, rows), (split, split_rows) = (
        rehearsed(tmp_path / f"{size}", folder, f"tokens_per_microbatch={size}", *LINEAR) for size in (4096, 64)
    )
    for name, values in whole.items():
        torch.testing.assert_close(split[name], values, rtol=0, atol=2e-7)
    for one, other in zip(rows, split_rows, strict=True):
        assert float(one["rehearsal/divergence"]) == pytest.approx(float(other["rehearsal/divergence"]), abs=1e-6)


@pytest.mark.parametrize("policy", ["full", "lora"])
def test_a_resumed_run_is_the_same_to_the_bit(tmp_path, folder, policy):
    options = (f"policy={policy}", "checkpoint.save_every=1", "algo.auxiliary.coefficient=1", "scheduler.name=constant")
    whole, rows = rehearsed(tmp_path / "whole", folder, *options, "trainer.max_steps=3")
    rehearsed(tmp_path / "parts", folder, *options, "trainer.max_steps=1")
    parts, continued = rehearsed(tmp_path / "parts", folder, *options, "trainer.max_steps=3", "resume=auto")
    assert all(torch.equal(parts[name], values) for name, values in whole.items())
    assert list(map(without_clock, continued)) == list(map(without_clock, rows))
    assert float(rows[-1]["rehearsal/divergence"]) > 0


@pytest.mark.slow
def test_two_ranks_train_as_one_process(tmp_path, folder):
    # Four completions a rank in one mini-batch of five: one rank has a completion more than the other.
    samples = (f"algo.auxiliary.samples={folder}", "algo.auxiliary.coefficient=1")
    options = (*MOVING, *LINEAR, *samples, "trainer.max_steps=3")
    one, *others = on_one_and_two_ranks(tmp_path, ("ddp_cpu2", "fsdp_cpu2"), *options)
    for alone, shared in (pair for two in others for pair in zip(one, two, strict=True)):
        for name in ("rehearsal/divergence", "rehearsal/log_ratio", "train/loss", "train/grad_norm", "train/reward"):
            assert float(shared[name]) == pytest.approx(float(alone[name]), rel=1e-6, abs=1e-6), name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("algo=dph",), "algo.auxiliary.samples is None: give a folder"),
        (("algo=ppo", "+algo.auxiliary=${dph}"), "algo.auxiliary with algo.critic"),
    ],
)
def test_what_cannot_work_is_found_before_the_weights(options, words, monkeypatch):
    monkeypatch.setattr("apo_lightning.run.training.load_model", None)
    cfg = composed(*RUN, *SIGNAL, *options, f"+dph={{_target_: {Rehearsal.__module__}.Rehearsal, samples: null}}")
    with pytest.raises(ConfigError, match=words):
        prepare(cfg)


def test_samples_of_another_temperature_or_of_other_prompts_are_refused_before_training(tmp_path, folder):
    with pytest.raises(ConfigError, match=r"differ by \d\.\d+ nats a token"):
        rehearsed(tmp_path, folder, "temperature=0.5")
    samples = read_samples(folder / "samples.jsonl")
    shutil.copytree(folder, tmp_path / "samples")
    ids = list(dict.fromkeys(sample.prompt_id for sample in samples))
    other = dict(zip(ids, ids[1:] + ids[:1], strict=True))
    lines = [json.dumps(asdict(replace(s, prompt_id=other[s.prompt_id], logprob=s.logprob - 1))) for s in samples]
    (tmp_path / "samples" / "samples.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(ConfigError, match="sample that model, with this prompt"):
        rehearsed(tmp_path / "run", tmp_path / "samples")
