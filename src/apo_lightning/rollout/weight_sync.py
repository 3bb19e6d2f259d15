"""Starting an engine for a policy, copying the policy's weights to it, and checking that it samples from them."""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import groupby

import lightning.pytorch as pl
import torch
from jaxtyping import Float
from lightning.fabric import Fabric
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, revert_weight_conversion

from apo_lightning.common.console import say
from apo_lightning.common.hashing import hash64
from apo_lightning.errors import StaleWeightsError
from apo_lightning.model.lora import merged_parameters, persistent_buffers, whole
from apo_lightning.model.policy import Policy
from apo_lightning.rollout.engine import EngineContext, RolloutEngine, columns_of
from apo_lightning.types import Completion


def start_engine(
    engine: RolloutEngine,
    policy: Policy,
    *,
    max_model_len: int,
    device: torch.device,
    seed: int,
    process: pl.Trainer | Fabric | None = None,
) -> None:
    """Call `engine.setup` with the policy's architecture and dtype; `weight_sync.publish` brings the weights.

    `process` gives the ranks, None means a single process; the others are fields of `EngineContext`. Raises
    `ConfigError` as `Policy.architecture_folder` and `RolloutEngine.check` do.
    """
    say(f"starting the engine: {engine.name}")  # vLLM takes seconds on an idle machine, a minute on a busy one
    engine.setup(
        EngineContext(
            model_dir=policy.architecture_folder(),
            dtype=policy.compute_dtype,
            max_model_len=max_model_len,
            device=device,
            seed=seed,
            global_rank=0 if process is None else process.global_rank,
            local_rank=0 if process is None else process.local_rank,
            world_size=1 if process is None else process.world_size,
        )
    )


KERNEL_NOISE = 1e-3
"""[nats per token] Far above the difference between float32 kernels that sum in different orders."""
NOISE_MULTIPLE = 3


def named_weights(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield every parameter and persistent buffer of the policy, unsharded, by Hugging Face name; adapters are merged.

    Shards are cast before they are gathered, which halves the traffic from a float32 policy to a bfloat16 engine.
    Gathering is collective: with a sharded policy all ranks must read to the end, at the same time.

    A tied head is yielded twice, once under each name: engines keep a packed copy of the head, which the embedding's
    name alone would leave at the weights of the previous step. The dtype is that of the engine.

    Example:
        >>> [(name, weight.dtype) for name, weight in named_weights(nn.Linear(2, 1, bias=False), torch.bfloat16)]
        [('weight', torch.bfloat16)]
    """
    for name, weight in merged_parameters(model, remove_duplicate=False):
        yield name, whole(weight.to(dtype))
    yield from persistent_buffers(model).items()  # unrounded: engines choose experts in float32


def as_in_checkpoint(
    named_weights: Iterator[tuple[str, Tensor]], skeleton: PreTrainedModel
) -> Iterator[tuple[str, Tensor]]:
    """Rename and split `named_weights` into what `save_pretrained` writes, which other libraries read.

    transformers keeps the experts of a layer in one parameter; in a checkpoint each has matrices of its own. Weights
    are converted layer by layer, so that no more than one layer is held at a time.

    Args:
        named_weights: in the order of the model's parameters.
        skeleton: the same architecture, on the meta device.
    """
    conversions = get_model_conversion_mapping(skeleton, add_legacy=False)
    if all(isinstance(conversion, PrefixChange) for conversion in conversions):
        yield from named_weights
        return
    for _, layer in groupby(named_weights, key=lambda named: _LAYER.findall(named[0]) or named[0]):
        yield from revert_weight_conversion(skeleton, dict(layer)).items()


_LAYER = re.compile(r".*?\.\d+\.")


NUM_TENSORS, NUM_VALUES = 16, 2**16
"""A sync is checked in 16 tensors, and in some 65,536 values of each. A step changes 0.1 to 1 % of bfloat16 weights."""


@torch.no_grad()
def publish(model: nn.Module, engine: RolloutEngine, version: int) -> None:
    """Copy the policy's current weights to the engine; its completions carry `version` from now on.

    What the engine then holds is compared with what was sent, to the bit: all tensors at the first sync, and later
    `NUM_TENSORS`, which the version chooses.

    Raises:
        StaleWeightsError: the sync was incomplete, or the engine holds other weights than it was sent.
    """
    columns, sent = _sampled_columns(engine, version), dict[str, Tensor]()

    def watched() -> Iterator[tuple[str, Tensor]]:
        for name, weight in named_weights(model, engine.dtype):
            if name in columns:
                sent[name] = columns_of(weight, columns[name]).clone()
            yield name, weight

    engine.sync_weights(watched(), version)
    differs = {name: _differs(engine.held(name, columns[name]), values) for name, values in sent.items()}
    if stale := [name for name, is_other in differs.items() if is_other]:
        raise StaleWeightsError(
            f"stale weights in the engine: after the sync to policy version {version}, {len(stale)} of the {len(sent)} "
            f"tensors that were compared are not as they were sent: {', '.join(stale[:5])}"
        )
    if engine.unread is None:
        engine.unread = {name for name, is_other in differs.items() if is_other is None}
        if engine.unread:
            names = ", ".join(sorted(engine.unread)[:3])
            say(f"the {engine.name} engine does not show {len(engine.unread)} of {len(sent)} tensors as sent: {names}")


def _sampled_columns(engine: RolloutEngine, version: int) -> dict[str, slice]:
    """Evenly spaced columns of the tensors that are compared at this version."""
    names = sorted(engine.shapes.keys() - (engine.unread or set()), key=lambda name: hash64(f"{version} {name}"))
    names = names if engine.unread is None else names[:NUM_TENSORS]
    steps = {name: -(-engine.shapes[name].numel() // NUM_VALUES) for name in names}
    return {name: slice(int.from_bytes(hash64(f"{name} {version}")) % step, None, step) for name, step in steps.items()}


def _differs(held: Tensor | None, sent: Tensor) -> bool | None:
    """Whether an engine holds other values than it was sent; None: it has no such values, or quantised ones.

    A NaN is no difference: the log-probs show it, and whether the policy has it too.
    """
    if held is None or held.shape != sent.shape or held.itemsize == 1:
        return None
    tiny = torch.finfo(torch.float32).tiny  # matrix units flush smaller numbers to 0, in bfloat16 too
    return bool(((held - sent.to(held.dtype)).abs() > tiny).any())


def logprob_gap(rollout_logprobs: Float[Tensor, "tokens"], logprobs: Float[Tensor, "tokens"]) -> float:
    """Mean |log π_rollout − log π| over sampled tokens [nats], ≥ 0; NaN without tokens.

    It is the distance of the engine's policy from the trainer's, for the same tokens, weights and temperature.

    Example:
        >>> logprob_gap(torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -2.0]))
        0.25
    """
    return (rollout_logprobs.double() - logprobs.double()).abs().mean().item()


def gap_tolerance(noise: float, num_tokens: int) -> float:
    """The largest gap that rounding can explain: 0.001 + 3 · noise · (1 + 3/√n) [nats per token].

    The noise predicts an engine's gap to within a third, so a gap of three times the noise means another policy. Means
    over n tokens, of the gap and of the noise, have a relative error of about 1.5/√n each.

    Args:
        noise: mean change of the policy's log-probs by rounding [nats per token]; 0 in float32.
        num_tokens: n > 0, the smaller of the token counts behind the gap and the noise.

    Example:
        >>> round(gap_tolerance(0.04, 900), 3), gap_tolerance(0.0, 4)
        (0.133, 0.001)
    """
    return KERNEL_NOISE + NOISE_MULTIPLE * noise * (1 + 3 / math.sqrt(max(num_tokens, 1)))


def check_logprob_gap(gap: float, tolerance: float, version: int) -> None:
    """Raise `StaleWeightsError` if `gap` [nats] is above the tolerance [nats] or not finite.

    The completions, of policy version `version`, were then sampled from another policy than the trainer's.
    """
    if math.isfinite(gap) and gap <= tolerance:
        return
    raise StaleWeightsError(
        f"stale weights in the engine? At policy version {version} its log-probs are {gap:.3g} nats a token away from "
        f"the trainer's, and rounding explains {tolerance:.3g}: look at the last weight sync (every parameter, the "
        "tied head too), the prefix cache, the temperature and the tokenisation"
    )


def check_policy_version(completions: Sequence[Completion], version: int) -> None:
    """Raise `StaleWeightsError` if a completion was sampled at another version than the policy's.

    It detects an engine that has missed a sync even if the policy has hardly changed since.
    """
    others = sorted({completion.policy_version for completion in completions} - {version})
    if others:
        raise StaleWeightsError(
            f"stale weights in the engine: its completions are of policy version {', '.join(map(str, others))}, and "
            f"the policy is at version {version}: a weight sync was skipped, or went to another engine"
        )
