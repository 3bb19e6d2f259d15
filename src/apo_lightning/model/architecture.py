"""Which architectures the policy computes exactly, decided from a config, before any weights are loaded.

What a config names is refused by name. The rest is seen by a forward on the meta device, where nothing is computed: of
an architecture that this module has never heard of, it shows what its layers ask of attention.
"""

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.masking_utils import sdpa_mask

from apo_lightning.errors import ConfigError, in_brief

PROBE = "probe"
_CALLS: list[dict[str, Any]] = []
"""The keyword arguments of each call of attention in the running probe."""
_RANDOM = re.compile(r"drop|jitter|router_noise")
_WITHOUT_EFFECT = re.compile(r"classifier|summary|lora")
_PASSED_ON = {"position_ids", "use_cache", "output_attentions", "output_router_logits", "return_dict", "is_causal"}
"""Arguments of attention that change nothing for one sequence that nobody continues."""


def check_architecture(config: PretrainedConfig) -> None:
    """Raise unless the policy computes this model exactly; loads no weights.

    Raises:
        ConfigError: the model is not a text-only decoder with rotary positions and full attention in every layer, is
            quantised or random (dropout, jitter), or transforms its logits; or transformers cannot build it.
    """
    check_fields(config)
    config = copy.deepcopy(config)  # the probe sets its own attention in it
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except Exception as error:
        raise ConfigError(
            f"transformers cannot build the {config.model_type} model of this config ({in_brief(error)}): mend its "
            "config.json, or choose another model"
        ) from error
    if not isinstance(getattr(model.base_model, "layers", None), nn.ModuleList):
        _refuse(config, "has no base_model.layers")
    refuse_unsupported_head(model)
    _refuse_layers(model)


def check_fields(config: PretrainedConfig) -> None:
    """The part of `check_architecture` that reads the config alone; raises as it does."""
    if config.is_encoder_decoder:
        _refuse(config, "has an encoder")
    if config.get_text_config() is not config or isinstance(getattr(config, "vision_config", None), PretrainedConfig):
        _refuse(config, "is multimodal")
    if quantization := getattr(config, "quantization_config", None):
        fields = quantization if isinstance(quantization, Mapping) else vars(quantization)
        _refuse(config, f"is quantised ({fields.get('quant_method', 'quantization_config')})")
    if config.is_heterogeneous:
        _refuse(config, "has layers of different sizes")
    if not any(_ropes(config)):
        _refuse(config, "has no rotary positions")
    for kind in sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}):
        _refuse(config, f"has layers of {kind}")
    fields = config.to_dict()
    random = [name for name in fields if _RANDOM.search(name) and not _WITHOUT_EFFECT.search(name)]
    for name in ("attn_logit_softcapping", "kv_lora_rank", *random):
        if isinstance(fields.get(name), (int, float)) and fields[name]:
            _refuse(config, f"has {name}={fields[name]}")


def exact_length(config: PretrainedConfig) -> int | None:
    """The longest sequence [tokens] that comes out as if it were alone in its micro-batch; None: any.

    Beyond it a sliding window would act, which packed attention has not, or rotary frequencies would follow the longest
    sequence of the micro-batch (`longrope`, `dynamic`).

    Example:
        >>> from transformers import MistralConfig
        >>> exact_length(MistralConfig(sliding_window=4096)), exact_length(MistralConfig(sliding_window=None))
        (4096, None)
    """
    return min((limit for limit, _ in _limits(config)), default=None)


def check_length(config: PretrainedConfig, length: int, remedy: str) -> None:
    """Raise `ConfigError` where sequences of `length` tokens can be longer than `exact_length`."""
    limit, field = min(_limits(config), default=(length, ""))
    if length > limit:
        raise ConfigError(
            f"sequences of up to {length} tokens, and of a {config.model_type} model with this {field} this trainer "
            f"computes up to {limit}: {remedy}"
        )


def _limits(config: PretrainedConfig) -> Iterator[tuple[int, str]]:
    """The lengths [tokens] up to which a field of the config has no effect, and its name."""
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
    window = getattr(config, "sliding_window", None)
    if window is not None and "sliding_attention" in kinds:
        yield window, "sliding_window"
    for rope in _ropes(config):
        if (kind := rope.get("rope_type")) in ("longrope", "dynamic"):
            context = config.max_position_embeddings
            limit = context if kind == "dynamic" else rope.get("original_max_position_embeddings", context)
            yield limit, f"rope_type={kind}"


def refuse_unsupported_head(model: PreTrainedModel) -> None:
    """Raise unless the head is softmax(h·Wᵀ/τ); any other transformation would be silently ignored.

    Raises:
        ConfigError: the model caps or scales its logits, or its head has a bias.
    """
    for attribute in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(model.config, attribute, None) not in (None, 1, 1.0):
            raise ConfigError(
                f"{type(model).__name__} transforms its logits ({attribute}="
                f"{getattr(model.config, attribute)}), which this trainer does not support: choose another model"
            )
    head = model.get_output_embeddings()
    if getattr(head, "bias", None) is not None:
        raise ConfigError(
            f"{type(model).__name__} has a bias in its head, which this trainer does not support: choose another model"
        )


def _ropes(config: PretrainedConfig) -> list[Mapping[str, Any]]:
    """The rotary settings, one for each kind of layer that has its own."""
    rope: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    return [part for part in rope.values() if isinstance(part, Mapping)] or [rope]


def _refuse(config: PretrainedConfig, reason: str) -> NoReturn:
    raise ConfigError(f"a {config.model_type} model {reason}, which this trainer does not compute: choose another")


def _refuse_layers(model: PreTrainedModel) -> None:
    """Refuse a model on the meta device whose layers mix positions otherwise than by causal attention."""
    config, layers = model.config, cast(nn.ModuleList, model.base_model.layers)
    if not model._can_set_attn_implementation():
        _refuse(config, "does not let its attention be replaced")
    if any(isinstance(module, nn.Conv1d) for module in model.modules()):
        _refuse(config, "has convolutions over positions")
    model.set_attn_implementation(PROBE)
    _CALLS.clear()
    ids, no_mask = torch.empty(1, 2, dtype=torch.long, device="meta"), torch.empty(1, 1, 0, 0, device="meta")
    # Other implementations read which expert a token goes to, and rotary frequencies of these types the positions.
    if model._can_set_experts_implementation():
        model.set_experts_implementation("batched_mm")
    for module in model.modules():
        if getattr(module, "rope_type", None) in ("dynamic", "longrope"):
            vars(module)["rope_type"] = "default"
    try:
        with torch.device("meta"):
            model.base_model(input_ids=ids, position_ids=ids, attention_mask=no_mask, use_cache=False, layout=PROBE)
    except Exception as error:
        if "meta tensor" in str(error):
            return  # a layer reads values: its first forward will tell
        _refuse(config, f"has layers that fail without a mask ({in_brief(error)})")
    if len(_CALLS) != len(layers):
        _refuse(config, f"has {len(_CALLS)} calls of attention in {len(layers)} layers")
    for call in _CALLS:
        if call.pop("layout") != PROBE:
            _refuse(config, "does not hand arguments on to its attention")
        if call:
            _refuse(config, f"has {', '.join(sorted(call))} in its attention")


def _note_call(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    layout: str | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Stands for attention in the probe, and notes what it would have to heed."""
    given = {name for name, value in kwargs.items() if isinstance(value, Tensor) or value}
    heeded = given - _PASSED_ON
    if value.shape != key.shape:
        heeded.add("values of another size than keys")
    _CALLS.append({"layout": layout, **dict.fromkeys(heeded)})
    return query.transpose(1, 2).contiguous(), None


AttentionInterface.register(PROBE, _note_call)
AttentionMaskInterface.register(PROBE, sdpa_mask)
