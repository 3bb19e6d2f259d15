"""Records built by hand, small enough to compute with on paper."""

import torch

from apo_lightning.distributed.gathering import Ranks
from apo_lightning.evaluation.records import Sample, SamplingSettings
from apo_lightning.losses import GRPO
from apo_lightning.step.part import Setup
from apo_lightning.step.settings import StepSettings
from apo_lightning.step.update_record import NonfiniteSteps
from apo_lightning.types import (
    Advantages,
    Anchor,
    Completion,
    Prompt,
    Rollouts,
    StepOutput,
    StepTokens,
    ValidationOutput,
    Verdict,
)


class Alone(Ranks):
    """The one process of a run, without a trainer to ask."""

    def __init__(self):
        self.rank, self.world_size = 0, 1


SETTINGS = StepSettings(
    prompts_per_step=2,
    group_size=2,
    prompts_per_minibatch=1,
    tokens_per_microbatch=100,
    max_prompt_tokens=8,
    max_completion_tokens=8,
    temperature=1.0,
    aggregation="token_mean",
    old_logprobs="trainer",
    gradient_clip_norm=None,
    max_nonfinite_steps=3,
    validation_samples=1,
)


def make_setup(**given) -> Setup:
    """The set-up of a run of one process on the CPU; what is not given is None."""
    plain = {
        "policy": None,
        "reference": None,
        "loss": GRPO(),
        "parts": (),
        "settings": SETTINGS,
        "ranks": Alone(),
        "device": torch.device("cpu"),
        "seed": 1,
        "nonfinite": NonfiniteSteps(3),
        "prompts": (),
        "sample": None,
    }
    return Setup(**{**plain, **given})


def make_prompt(identifier="p0", problem="What is 1 + 1?", answer="2"):
    return Prompt(id=identifier, problem=problem, answer=answer, text=f"Q: {problem} A:", token_ids=(1, 2, 3))


def make_rollouts(statuses, group_size, *, lengths=None, step=1, first_prompt=0, texts=None):
    """One completion a status, prompt-major; completion b has tokens 10·b, 10·b + 1, …"""
    lengths = lengths or [2] * len(statuses)
    num_prompts = len(statuses) // group_size
    return Rollouts(
        step=step,
        prompts=tuple(make_prompt(f"p{first_prompt + i}") for i in range(num_prompts)),
        completions=tuple(
            Completion(
                token_ids=tuple(10 * b + t for t in range(length)),
                logprobs=(-0.5,) * length,
                finish_reason="stop",
                policy_version=step,
            )
            for b, length in enumerate(lengths)
        ),
        texts=tuple(texts or [f"text {b}" for b in range(len(statuses))]),
        verdicts=tuple(
            Verdict(reward=float(status == "correct"), status=status, extracted="2" if status == "correct" else None)
            for status in statuses
        ),
        group_size=group_size,
        policy_version=step,
    )


def make_step(
    statuses=("correct", "incorrect"),
    *,
    group_size=2,
    lengths=None,
    step=1,
    max_steps=4,
    metrics=None,
    entropy=None,
    max_prob=None,
    is_scored=None,
    ref_logprobs=None,
    anchor: Anchor | None = None,
    loss_metrics=None,
    texts=None,
):
    """Advantage +1 on correct completions and −1 on others."""
    rollouts = make_rollouts(statuses, group_size, lengths=lengths, step=step, texts=texts)
    owner = torch.repeat_interleave(torch.arange(len(statuses)), rollouts.lengths.flatten())
    values = torch.where(rollouts.is_correct, 1.0, -1.0)
    num_tokens = len(owner)
    tokens = StepTokens(
        token_ids=torch.tensor([i for completion in rollouts.completions for i in completion.token_ids]),
        sequence_ids=owner,
        advantages=values.flatten()[owner],
        is_correct=rollouts.is_correct.flatten()[owner],
        rollout_logprobs=torch.full((num_tokens,), -0.5),
        old_logprobs=torch.full((num_tokens,), -0.5),
        entropy=torch.ones(num_tokens) if entropy is None else torch.tensor(entropy),
        max_prob=torch.full((num_tokens,), 0.25) if max_prob is None else torch.tensor(max_prob),
        is_scored=torch.ones(num_tokens, dtype=torch.bool) if is_scored is None else torch.tensor(is_scored),
        ref_logprobs=ref_logprobs,
        anchor=anchor,
    )
    counts = {f"reward/num_{name}": float(statuses.count(name)) for name in ("correct", "incorrect", "unparsed")}
    return StepOutput(
        step=step,
        max_steps=max_steps,
        rollouts=rollouts,
        advantages=Advantages(values=values, keep=torch.ones_like(rollouts.is_correct)),
        tokens=tokens,
        loss_metrics=loss_metrics or {},
        metrics=counts | (metrics or {}),
        timings={"generate": 1.0, "update": 2.0, "step": 3.5},
    )


def make_validation(statuses, *, step=0, name="sums", group_size=2):
    rollouts = make_rollouts(statuses, group_size, step=step)
    metrics = {f"val/{name}/pass@1": float(rollouts.is_correct.float().mean())}
    return ValidationOutput(step=step, name=name, rollouts=rollouts, metrics=metrics)


def logprob_sum(policy, microbatch):
    """Σ log π of a micro-batch, with its gradient, as the update takes it."""
    head = policy.detached_head(policy.hidden_states(microbatch), temperature=1.0)
    for tokens in head.chunks():
        head.add(head.statistics(tokens, microbatch.targets[tokens]).logprobs.sum())
    return head.total_loss()


def sampling_settings(**changes) -> SamplingSettings:
    settings = {
        "num_samples": 4,
        "temperature": 1.0,
        "top_p": 1.0,
        "max_completion_tokens": 8,
        "seed": 0,
        "samples_per_batch": 64,
        "prompt": "{problem}",
        "engine": "transformers",
        "reward": "numeric",
    }
    return SamplingSettings(**{**settings, **changes})


def make_sample(**changes) -> Sample:
    fields = {"prompt_id": "p0", "sample": 0, "seed": 0, "status": "correct", "reward": 1.0, "extracted": "7"}
    fields |= {"finish_reason": "stop", "num_tokens": 10, "logprob": -3.0, "entropy": 0.5, "max_prob": 0.75}
    return Sample(**{**fields, "support_coverage": None, "outside_support": None, "text": "so it is 7", **changes})


def head_problem(num_tokens=11, hidden_size=6, vocab=17, anchors=3, dtype=torch.float64, scale=1.0, seed=0):
    """Hidden states, a head, token ids, and anchor ids of which every third row has a slot less."""
    generator = torch.Generator().manual_seed(seed)
    hidden = (scale * torch.randn(num_tokens, hidden_size, generator=generator)).to(dtype)
    weight = torch.randn(vocab, hidden_size, generator=generator).to(dtype)
    token_ids = torch.randint(vocab, (num_tokens,), generator=generator)
    anchor_ids = torch.stack([torch.randperm(vocab, generator=generator)[:anchors] for _ in range(num_tokens)])
    anchor_ids[::3, -1] = -1
    return hidden.requires_grad_(), weight.requires_grad_(), token_ids, anchor_ids
