"""DPH-RL's rehearsal: a divergence to the model before training, on what that model answered correctly itself."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.records import Sample
from apo_lightning.evaluation.samples_file import SAMPLES, read_samples
from apo_lightning.losses.functional import LOG_RATIO_LIMIT, Number
from apo_lightning.model.packing import PackedSequences
from apo_lightning.types import LossOutput, Prompt
from apo_lightning.update.auxiliary import Stored

CAP = 10.0
"""Largest value of `forward_kl_k3`, which has no gradient beyond it."""


def _js(log_u: Tensor) -> Tensor:
    return log_u.exp() * log_u - (log_u.exp() + 1) * (torch.nn.functional.softplus(log_u) - math.log(2))


DIVERGENCES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "forward_kl_k1": torch.neg,
    "forward_kl_k3": lambda log_u: (torch.expm1(log_u) - log_u).clamp(max=CAP),
    "js": _js,
}


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """A divergence between the policy and the model before training, on that model's own correct completions.

        u = π(y)/π_ref(y),   y ~ π_ref,   loss = coefficient·f(u)
        forward_kl_k1: f = −log u       forward_kl_k3: f = u − 1 − log u       js: f = u·log u − (u + 1)·log((u + 1)/2)

    Over all y the mean of both forward f is KL(π_ref‖π), and that of js twice the Jensen-Shannon divergence. The
    gradients of k3 and js are 0 where the policy equals the model before training; that of k1 is supervised learning.
    The completions are the correct ones of *near-perfect* prompts, which that model solves in at least
    `min_share_correct` of its samples. Their means over all drawn tokens go into the loss.

    Source: Li et al. 2025 (DPH-RL, arXiv 2509.07430), released code: `sft_loss_mode` forward, with `kl_loss_type`
    low_var_kl, is `forward_kl_k3` and its cap; js_low_var is `js`. The paper's equation is `forward_kl_k1`.

    Departure: near-perfect prompts stay in the training set; the paper explores on the others alone. The paper samples
    one more completion of each and keeps it if it is correct; here all correct ones of the file are kept. Each
    mini-batch draws anew, not in passes. `coefficient` weighs a mean over their tokens beside the mean over the
    rollout's; in the released code the two share one mean, and rehearsal has about a ninth of it. The file holds text:
    completions with another number of tokens when encoded again are left out, and the stop token is the tokenizer's.

    Metrics: `rehearsal/divergence`, f(u); `rehearsal/log_ratio`, −log u, the plain estimate of KL(π_ref‖π).

    Attributes:
        samples: folder in which `apo evaluate` wrote `samples.jsonl`, of the model before training on training prompts.
        divergence: of `DIVERGENCES`.
        coefficient: η ≥ 0; 0 measures without training.
        min_share_correct: in (0, 1].
        completions_per_minibatch: drawn for each optimizer step, over all ranks.

    Raises:
        ConfigError: a value outside its range.
    """

    samples: str | None
    divergence: str = "forward_kl_k3"
    coefficient: Number = 0.01
    min_share_correct: Number = 0.75
    completions_per_minibatch: int = 16

    def __post_init__(self) -> None:
        for name, is_right, wanted in (
            ("divergence", self.divergence in DIVERGENCES, f"one of {', '.join(DIVERGENCES)}"),
            ("coefficient", 0 <= self.coefficient < math.inf, "a finite number of at least 0, such as 0.01"),
            ("min_share_correct", 0 < self.min_share_correct <= 1, "a share above 0 and at most 1, such as 0.75"),
            ("completions_per_minibatch", self.completions_per_minibatch > 0, "at least 1"),
        ):
            if not is_right:
                raise ConfigError(f"algo.auxiliary.{name} is {getattr(self, name)}: give {wanted}")

    def __call__(self, logprobs: Float[Tensor, "tokens"], ref_logprobs: Float[Tensor, "tokens"]) -> LossOutput:
        """The loss of each token.

        Example:
            The policy finds a token half as likely as before: f = 1/2 − 1 + log 2.

            >>> rehearsal = Rehearsal(samples=None, coefficient=1)
            >>> rehearsal(torch.tensor([0.25]).log(), torch.tensor([0.5]).log()).per_token
            tensor([0.1931])
        """
        log_u = (logprobs - ref_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        divergence = DIVERGENCES[self.divergence](log_u)
        metrics = {"rehearsal/divergence": divergence.detach(), "rehearsal/log_ratio": -log_u.detach()}
        return LossOutput(per_token=self.coefficient * divergence, metrics=metrics)

    def load(self, prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase, max_completion_tokens: int) -> Stored:
        """The correct completions of near-perfect prompts; raises `ConfigError` if there are none to use."""
        if self.samples is None:
            raise ConfigError("algo.auxiliary.samples is null: give a folder of apo evaluate, on training prompts")
        path = Path(self.samples) / SAMPLES
        if not path.is_file():
            raise ConfigError(f"algo.auxiliary.samples: there is no {path}; run apo evaluate on training prompts")
        indices = {prompt.id: index for index, prompt in enumerate(prompts)}
        chosen = [s for s in self._near_perfect(read_samples(path)) if s.prompt_id in indices]
        chosen = [sample for sample in chosen if sample.num_tokens <= max_completion_tokens]
        if not chosen:
            raise ConfigError(
                f"algo.auxiliary: {path} has no correct sample of a training prompt that is right in a share of "
                f"min_share_correct={self.min_share_correct}: lower it, or run apo evaluate on training prompts"
            )
        encoded = [(s, _token_ids(s, tokenizer)) for s in chosen]
        fitting = [(s, token_ids) for s, token_ids in encoded if len(token_ids) == s.num_tokens]
        if 2 * len(fitting) < len(chosen):
            raise ConfigError(
                f"algo.auxiliary: of {len(chosen)} samples in {path} only {len(fitting)} have as many tokens as when "
                "they were sampled: they are of another tokenizer; run apo evaluate with this model"
            )
        sequences = PackedSequences(
            prompts=[prompt.token_ids for prompt in prompts],
            completions=[token_ids for _, token_ids in fitting],
            owners=[indices[s.prompt_id] for s, _ in fitting],
        )
        return Stored(sequences=sequences, logprobs=[s.logprob for s, _ in fitting])

    def _near_perfect(self, samples: Sequence[Sample]) -> list[Sample]:
        """The correct samples of the prompts that are right often enough."""
        groups: dict[str, list[bool]] = defaultdict(list)
        for sample in samples:
            groups[sample.prompt_id].append(sample.status == "correct")
        shares = {prompt_id: sum(group) / len(group) for prompt_id, group in groups.items()}
        return [s for s in samples if s.status == "correct" and shares[s.prompt_id] >= self.min_share_correct]


def _token_ids(sample: Sample, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The tokens of a completion; its text has all but the stop token."""
    end = [tokenizer.eos_token_id] if sample.finish_reason == "stop" else []
    return (*tokenizer.encode(sample.text, add_special_tokens=False), *end)
