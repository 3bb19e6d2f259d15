"""Policy and reference statistics of every token of a step, as JSON Lines."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from jaxtyping import Float
from torch import Tensor

from apo_lab.diagnostics.settings import check_at_least, measured_anchor_size
from apo_lightning.callbacks import StepCallback, check_every_n_steps
from apo_lightning.common.files import to_json, write_atomically
from apo_lightning.distributed.gathering import from_all_ranks, in_rollout_order
from apo_lightning.errors import ConfigError
from apo_lightning.losses import APO, PolicyLoss
from apo_lightning.losses.functional import LOG_RATIO_LIMIT, anchor_log_ratio, anchor_set
from apo_lightning.types import Needs, StepOutput

DIGITS = 5
"""Decimal places of log-probs and entropies; a probability of 0.9 is then exact to 0.00001."""


class TokenWriter(StepCallback):
    """Writes `rollouts/tokens/step_000010.jsonl`: a first line with the texts of token ids, then a line per completion.

    They have the order of `rollouts/step_000010.jsonl`. A token takes about 65 bytes plus 25 per anchor (0.27 kB at
    K = 8).

    Args:
        anchor_size: K of the anchors; None: the loss's own, or the paper's 8.
        every_n_steps: write at multiples of this step; each costs a forward of reference and policy over all tokens,
            which is shared with a distribution monitor that measures at the same step.
    """

    def __init__(self, anchor_size: int | None = None, every_n_steps: int = 5) -> None:
        check_at_least("token_writer", 1, anchor_size=anchor_size)
        self.every_n_steps = check_every_n_steps("token_writer", every_n_steps)
        self.given_size = anchor_size
        self._folder: Path | None = None
        self._tokenizer: Any = None
        self.prepare(None)

    def prepare(self, loss: PolicyLoss | None) -> None:
        """Choose K."""
        self.anchor_size = measured_anchor_size(self.given_size, loss)
        self.exclude_sampled = not isinstance(loss, APO) or loss.exclude_sampled
        self.needs = Needs(ref_logprobs=True, anchor_size=self.anchor_size)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Only the first rank gets a folder to write to."""
        self._folder = Path(trainer.default_root_dir) / "rollouts" / "tokens" if trainer.is_global_zero else None
        policy: Any = pl_module.policy
        self._tokenizer = policy.tokenizer

    def on_step(self, step: StepOutput) -> None:
        """Write the file of this step; its bytes do not depend on the number of ranks."""
        own = token_lines(step, self.anchor_size, exclude_sampled=self.exclude_sampled)
        lines = in_rollout_order(from_all_ranks(own), step.rollouts.group_size)
        if self._folder is not None:
            head = {"step": step.step, "anchor_size": self.anchor_size, "texts": texts_of(lines, self._tokenizer)}
            content = b"".join(to_json(line) + b"\n" for line in (head, *lines))
            write_atomically(self._folder / f"step_{step.step:06d}.jsonl", content)


def token_lines(step: StepOutput, anchor_size: int, *, exclude_sampled: bool = True) -> list[dict[str, Any]]:
    """One dict per completion, with lists of one entry per token under the sampling policy; null if not computed.

    `logprob` is log π_old(y), `ref_logprob` log π_ref(y), `entropy` [nats], `max_prob`, `advantage`; `anchor_ratio` is
    r_anchor = Σ_S π/Σ_S π_ref over the reference's K likeliest tokens (without the sampled one if `exclude_sampled`);
    `anchors` holds, for each token, [id, log π_ref, log π] in descending order of π_ref.

    Source: Wang et al. 2026, the definition of r_anchor.

    Raises:
        ConfigError: the step has no reference statistics.
    """
    tokens = step.tokens
    if tokens.anchor is None or tokens.ref_logprobs is None:
        raise ConfigError("the token writer found no reference statistics in this step: use ~callbacks.token_writer")
    ids, ref_logprobs, logprobs = (
        values[:, :anchor_size]
        for values in (tokens.anchor.token_ids, tokens.anchor.ref_logprobs, tokens.anchor.logprobs)
    )
    members = anchor_set(ids, ref_logprobs, tokens.token_ids, exclude_sampled=exclude_sampled)
    ratio = anchor_log_ratio(logprobs, ref_logprobs, members).clamp(max=LOG_RATIO_LIMIT).exp()
    anchors = zip(ids.tolist(), _rounded(ref_logprobs), _rounded(logprobs), strict=True)
    columns = {
        "logprob": _rounded(tokens.old_logprobs),
        "ref_logprob": _rounded(tokens.ref_logprobs),
        "entropy": _rounded(tokens.entropy),
        "max_prob": _rounded(tokens.max_prob),
        "advantage": _rounded(tokens.advantages),
        "anchor_ratio": _rounded(ratio.masked_fill(~(ids >= 0).any(1), torch.nan)),
        "anchors": [[[i, ref, own] for i, ref, own in zip(*row, strict=True) if i >= 0] for row in anchors],
    }
    lines, start = [], 0
    for index, completion in enumerate(step.rollouts.completions):
        end = start + len(completion.token_ids)
        line = {
            "step": step.step,
            "prompt_id": step.rollouts.prompts[index // step.rollouts.group_size].id,
            "sample": index % step.rollouts.group_size,
            "token_ids": list(completion.token_ids),
        }
        lines.append(line | {name: values[start:end] for name, values in columns.items()})
        start = end
    return lines


def texts_of(lines: Sequence[dict[str, Any]], tokenizer: Any) -> dict[str, str]:
    """Token id → text for every token in the lines; special tokens by name, parts of a character as `�`."""
    ids = {i for line in lines for i in line["token_ids"]}
    ids |= {anchor[0] for line in lines for anchors in line["anchors"] for anchor in anchors}
    return {str(i): str(tokenizer.decode([i], skip_special_tokens=False)) for i in sorted(ids)}


def _rounded(values: Float[Tensor, "..."]) -> list[Any]:
    # In float64, since a rounded float32 would be printed with seventeen decimals.
    return values.detach().cpu().double().round(decimals=DIGITS).tolist()
