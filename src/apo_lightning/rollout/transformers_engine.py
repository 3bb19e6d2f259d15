"""The transformers engine: slow and exact, with no extra dependency."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    PreTrainedModel,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from apo_lightning.errors import ConfigError
from apo_lightning.logprobs.head import matmul
from apo_lightning.rollout.engine import EngineContext, FinishedListener, RolloutEngine
from apo_lightning.rollout.sampling import sample_tokens, uniforms
from apo_lightning.types import Completion, GenerationRequest

UNREPEATED_KEYS = "unrepeated_keys"


class TransformersEngine(RolloutEngine):
    """Samples with a second copy of the model, synced by name like any other engine.

    Each sample has its own random generator, so in float32 its tokens do not depend on the rest of the batch. Requests
    are batched by prompt length, the longest first.

    Args:
        sequences_per_batch: maximal number of completions decoded at once.
    """

    name = "transformers"

    def __init__(self, sequences_per_batch: int):
        super().__init__()
        self.sequences_per_batch = sequences_per_batch

    def check(self, device: torch.device) -> None:
        """See `RolloutEngine.check`."""
        if self.sequences_per_batch < 1:
            raise ConfigError(f"engine sequences_per_batch is {self.sequences_per_batch}: it must be at least 1")

    def _start(self, context: EngineContext) -> None:
        config = AutoConfig.from_pretrained(context.model_dir)
        with torch.random.fork_rng(devices=[]):  # building draws initial weights
            model = AutoModelForCausalLM.from_config(config, dtype=context.dtype)
        self._model = model.to(context.device).eval().requires_grad_(False)
        attend_with_unrepeated_keys(self._model)
        self._parameters = self._model.state_dict()
        self._head = self._model.get_output_embeddings().weight

    def _load(self, named_weights: Iterator[tuple[str, Tensor]]) -> Sequence[str]:
        with torch.no_grad():
            for name, weight in named_weights:
                self._parameters[name].copy_(weight)
        return ()

    def _sample(self, requests: Sequence[GenerationRequest], finished: FinishedListener) -> None:
        # The sort is stable: completions of one prompt stay adjacent and share its prefill.
        order = sorted(range(len(requests)), key=lambda index: -len(requests[index].prompt_token_ids))
        with torch.inference_mode():
            for start in range(0, len(requests), self.sequences_per_batch):
                indices = order[start : start + self.sequences_per_batch]
                batch = _Batch([requests[index] for index in indices], self.context.device)
                logits = batch.spread(self._last_logits(batch))
                while True:
                    for row in batch.advance(logits):
                        finished(indices[row], batch.completion(row, self._version))
                    if not batch.rows:
                        break
                    logits = self._last_logits(batch)

    def _last_logits(self, batch: "_Batch") -> Float[Tensor, "rows vocab"]:
        output = self._model.base_model(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            past_key_values=batch.cache,
            use_cache=True,
        )
        # As in the trainer: rounded to bfloat16, logits alone would move the log-probs by more than all else does.
        return matmul(output.last_hidden_state[:, -1], self._head.T, torch.float32)

    def _release_memory(self) -> None:
        for weight in self._parameters.values():
            weight.untyped_storage().resize_(0)

    def _claim_memory(self) -> None:
        for weight in self._parameters.values():
            weight.untyped_storage().resize_(weight.nbytes)

    def _stop(self) -> None:
        del self._model, self._parameters, self._head


class _Batch:
    """Left-padded sequences that grow by one token per forward; finished ones are removed.

    The first forward reads each distinct prompt once; `spread` then gives every request its own row.
    """

    def __init__(self, requests: Sequence[GenerationRequest], device: torch.device):
        self.requests = requests
        self.rows = list(range(len(requests)))
        """The running requests, one per row of the tensors below (after `spread`)."""
        self.cache = DynamicCache()
        prompts = list(dict.fromkeys(request.prompt_token_ids for request in requests))
        self._prompt_rows = torch.tensor([prompts.index(request.prompt_token_ids) for request in requests])
        width = max(map(len, prompts))
        padding = [width - len(prompt) for prompt in prompts]
        self.input_ids = torch.tensor(
            [[0] * pad + list(prompt) for pad, prompt in zip(padding, prompts, strict=True)], device=device
        )
        self.attention_mask = (torch.arange(width) >= torch.tensor(padding)[:, None]).long().to(device)
        # Positions count from the first real token: the padding must not change the result.
        self.position_ids = (self.attention_mask.cumsum(1) - 1).clamp(min=0)
        self.temperatures = torch.tensor([request.temperature for request in requests], device=device)
        self.top_p = torch.tensor([request.top_p for request in requests], device=device)
        self._uniforms = [uniforms(request.seed, request.max_new_tokens) for request in requests]
        self._token_ids: list[list[int]] = [[] for _ in requests]
        self._logprobs: list[list[float]] = [[] for _ in requests]
        self._top_logprobs: list[list[float]] = [[] for _ in requests]

    def spread(self, logits: Float[Tensor, "prompts vocab"]) -> Float[Tensor, "rows vocab"]:
        """Repeat each prompt's row for each of its requests."""
        index = self._prompt_rows.to(logits.device)
        self.cache.batch_select_indices(index)
        self.position_ids, self.attention_mask = self.position_ids[index], self.attention_mask[index]
        return logits[index]

    def advance(self, logits: Float[Tensor, "rows vocab"]) -> list[int]:
        """Append one token to every row, remove the finished rows and return their requests."""
        step = len(self._token_ids[self.rows[0]])
        u = torch.stack([self._uniforms[request][step] for request in self.rows]).to(logits.device)
        tokens, *logprobs = sample_tokens(logits, self.temperatures, u, self.top_p)
        found = (values.tolist() for values in (tokens, *logprobs))
        for request, token, logprob, top_logprob in zip(self.rows, *found, strict=True):
            self._token_ids[request].append(token)
            self._logprobs[request].append(logprob)
            self._top_logprobs[request].append(top_logprob)
        self.input_ids = tokens[:, None]
        self.position_ids = self.position_ids[:, -1:] + 1
        self.attention_mask = torch.cat([self.attention_mask, torch.ones_like(self.input_ids)], dim=1)
        finished = [request for request in self.rows if self._is_finished(request)]
        if finished:
            self._keep([row for row, request in enumerate(self.rows) if request not in finished])
        return finished

    def completion(self, request: int, version: int) -> Completion:
        """The completion of a finished request."""
        token_ids = self._token_ids[request]
        return Completion(
            token_ids=tuple(token_ids),
            logprobs=tuple(self._logprobs[request]),
            top_logprobs=tuple(self._top_logprobs[request]),
            finish_reason="stop" if token_ids[-1] in self.requests[request].stop_token_ids else "length",
            policy_version=version,
        )

    def _is_finished(self, request: int) -> bool:
        token_ids, limits = self._token_ids[request], self.requests[request]
        return len(token_ids) == limits.max_new_tokens or token_ids[-1] in limits.stop_token_ids

    def _keep(self, running: list[int]) -> None:
        """Drop all rows but the running ones."""
        self.rows = [self.rows[row] for row in running]
        index = torch.tensor(running, dtype=torch.long, device=self.input_ids.device)
        self.cache.batch_select_indices(index)
        self.input_ids, self.position_ids = self.input_ids[index], self.position_ids[index]
        self.attention_mask, self.temperatures = self.attention_mask[index], self.temperatures[index]
        self.top_p = self.top_p[index]


def attend_with_unrepeated_keys(model: PreTrainedModel) -> None:
    """Stop a float32 model on the CPU from copying keys and values to each query head of a group.

    With a mask, transformers makes this copy for every token, which takes longer than the attention itself. The CPU
    kernel reads them in place and returns the same bits. Other devices and dtypes are left as they are: they would
    get slower kernels or one that rounds differently.
    """
    if model.device.type == "cpu" and model.dtype == torch.float32 and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(UNREPEATED_KEYS)


def _attention(
    module: nn.Module,
    query: Float[Tensor, "rows heads queries head_size"],
    key: Float[Tensor, "rows kv_heads tokens head_size"],
    value: Float[Tensor, "rows kv_heads tokens value_size"],
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if attention_mask is None or query.shape[2] != 1 or kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    output = scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=kwargs.get("scaling"), enable_gqa=True
    )
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register(UNREPEATED_KEYS, _attention)
AttentionMaskInterface.register(UNREPEATED_KEYS, sdpa_mask)
