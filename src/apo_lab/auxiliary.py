"""Second terms of the loss, on stored completions (`algo.auxiliary`): DPH-RL's rehearsal of the base model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.samples_file import SAMPLES, read_samples
from apo_lightning.losses.functional import LOG_RATIO_LIMIT, Number
from apo_lightning.model.packing import PackedSequences
from apo_lightning.parts.auxiliary import Stored
from apo_lightning.types import LossOutput, Prompt

DIVERGENCES = ("forward_kl_k1", "forward_kl_k3", "js")
CAP = 10.0  # of forward_kl_k3, which has no gradient beyond it


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """A divergence between the policy and the model before training, on that model's own correct completions.

        u = π(y)/π_ref(y),   y ~ π_ref,   loss = coefficient·f(u)
        forward_kl_k1: f = −log u       forward_kl_k3: f = u − 1 − log u       js: f = u·log u − (u + 1)·log((u + 1)/2)

    Over all y the mean of both forward f is KL(π_ref‖π), and that of js twice the Jensen-Shannon divergence. The
    gradients of k3 and js are 0 where π = π_ref; that of k1 is that of supervised learning. The completions are the
    correct ones of *near-perfect* prompts, which the model solved in at least `min_share_correct` of its samples.

    Source: Li et al. 2025 (DPH-RL, arXiv 2509.07430), released code: `sft_loss_mode` forward, with `kl_loss_type`
    low_var_kl, is `forward_kl_k3` and its cap; js_low_var is `js`. The paper's equation is `forward_kl_k1`.

    Departure: training also samples the near-perfect prompts; the paper's training leaves them out. All their correct
    completions in the file are used; the paper samples one more for each prompt and uses it if it is correct. Every
    mini-batch draws its completions at random; the paper goes through all of them in turn. `coefficient` multiplies a
    mean over the drawn tokens, which is added to the loss of the rollout; in the released code both are one mean, in
    which rehearsal has a weight of about one ninth. The file holds text, not token ids: a completion whose text has
    another number of tokens when it is encoded again is left out, and the stop token is the tokenizer's.

    Metrics: `rehearsal/divergence`, f(u); `rehearsal/log_ratio`, −log u, the plain estimate of KL(π_ref‖π).

    Attributes:
        samples: folder in which `apo evaluate` wrote `samples.jsonl`, of the model before training on training prompts.
        divergence: f, one of `DIVERGENCES`.
        coefficient: η ≥ 0; 0 measures without training.
        min_share_correct: in (0, 1].
        completions_per_minibatch: drawn for each optimizer step, over all ranks; without replacement.
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
            ("completions_per_minibatch", self.completions_per_minibatch > 0, "1 or more"),
        ):
            if not is_right:
                raise ConfigError(f"algo.auxiliary.{name} is {getattr(self, name)}: give {wanted}")

    def __call__(self, logprobs: Float[Tensor, "tokens"], ref_logprobs: Float[Tensor, "tokens"]) -> LossOutput:
        """The loss of each token.

        Example:
            The policy finds a token half as likely as before: f = 1/2 − 1 + log 2.

            >>> Rehearsal(samples=None, coefficient=1)(torch.tensor([0.25]).log(), torch.tensor([0.5]).log()).per_token
            tensor([0.1931])
        """
        log_u = (logprobs - ref_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        divergence = -log_u
        if self.divergence == "forward_kl_k3":
            divergence = (torch.expm1(log_u) - log_u).clamp(max=CAP)
        elif self.divergence == "js":
            log_mean = torch.nn.functional.softplus(log_u) - math.log(2)  # log((u + 1)/2)
            divergence = log_u.exp() * log_u - (log_u.exp() + 1) * log_mean
        metrics = {"rehearsal/divergence": divergence.detach(), "rehearsal/log_ratio": -log_u.detach()}
        return LossOutput(per_token=self.coefficient * divergence, metrics=metrics)

    def load(self, prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase, max_completion_tokens: int) -> Stored:
        """The correct completions of near-perfect prompts; raises `ConfigError` if there are none to use."""
        path = Path(self.samples or "") / SAMPLES
        if self.samples is None or not path.is_file():
            why = f"give a folder with the {SAMPLES} of apo evaluate, of the model before training on training prompts"
            raise ConfigError(f"algo.auxiliary.samples is {self.samples}: {why}")
        owners = {prompt.id: index for index, prompt in enumerate(prompts)}
        verdicts: dict[str, list[bool]] = {}
        samples = [sample for sample in read_samples(path) if sample.prompt_id in owners]
        for sample in samples:
            verdicts.setdefault(sample.prompt_id, []).append(sample.status == "correct")
        shares = {prompt_id: sum(own) / len(own) for prompt_id, own in verdicts.items()}
        samples = [s for s in samples if s.status == "correct" and shares[s.prompt_id] >= self.min_share_correct]
        samples = [s for s in samples if s.num_tokens <= max_completion_tokens]
        if not samples:
            wanted = f"a training prompt of which a share of min_share_correct={self.min_share_correct} are correct"
            raise ConfigError(f"algo.auxiliary: {path} has no sample of {wanted}: lower it, or sample training prompts")
        end = {"stop": (tokenizer.eos_token_id,), "length": ()}
        encoded = [(*tokenizer.encode(s.text, add_special_tokens=False), *end[s.finish_reason]) for s in samples]
        kept = [(s, ids) for s, ids in zip(samples, encoded, strict=True) if len(ids) == s.num_tokens]
        if 2 * len(kept) < len(samples):
            found = (
                f"only {len(kept)} of {len(samples)} samples in {path} have as many tokens as when they were sampled"
            )
            raise ConfigError(f"algo.auxiliary: {found}: they are of another tokenizer; run apo evaluate on this model")
        packed = PackedSequences(
            prompts=[prompt.token_ids for prompt in prompts],
            completions=[ids for _, ids in kept],
            owners=[owners[s.prompt_id] for s, _ in kept],
        )
        return Stored(sequences=packed, logprobs=[s.logprob for s, _ in kept])
