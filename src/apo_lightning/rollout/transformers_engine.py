"""The transformers engine: slow and exact, with no extra dependency."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import torch
from jaxtyping import Float, Int
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
from apo_lightning.rollout.engine import EngineContext, FinishedListener, RolloutEngine, columns_of
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

    def _load(self, named_weights: Iterator[tuple[str, Tensor]]) -> None:
        with torch.no_grad():
            for name, weight in named_weights:
                self._parameters[name].copy_(weight)

    def held(self, name: str, columns: slice) -> Tensor:
        """See `RolloutEngine.held`."""
        return columns_of(self._parameters[name], columns)

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


CACHED_PROBABILITIES = 2**18
"""Probabilities that the CPU processes at once: in float64 they fit a second-level cache."""


def sample_tokens(
    logits: Float[Tensor, "rows vocab"],
    temperatures: Float[Tensor, "rows"],
    uniforms: Float[Tensor, "rows"],
    top_p: Float[Tensor, "rows"] | None = None,
) -> tuple[Int[Tensor, "rows"], Float[Tensor, "rows"], Float[Tensor, "rows"]]:
    """Sample one token per row by inverting the distribution function of softmax(logits / temperature).

        token = min {v : Σ_{w ≤ v} π(w) > u},   u in [0, 1)

    Args:
        logits: of any floating dtype; softmax is computed in float32, the cumulative sum in float64.
        temperatures: 0 takes the most likely token (the lowest id of equals) and reports softmax(logits).
        uniforms: u in float64; float32 has too few values to reach every token of a large vocabulary.
        top_p: restricts each row to its nucleus; None: all tokens.

    Returns:
        Token ids, log π of each, and the largest log π of its row [nats].

    Example:
        Probabilities 0.25 and 0.75: u = 0.2 falls into the first token, u = 0.3 into the second.

        >>> logits = torch.tensor([[0.25, 0.75]]).log().expand(2, 2)
        >>> uniforms = torch.tensor([0.2, 0.3], dtype=torch.float64)
        >>> tokens, logprobs, top = sample_tokens(logits, torch.ones(2), uniforms)
        >>> tokens.tolist(), logprobs.exp(), top.exp()
        ([0, 1], tensor([0.2500, 0.7500]), tensor([0.7500, 0.7500]))
    """
    rows, vocab = logits.shape
    rows_at_once = max(1, CACHED_PROBABILITIES // vocab) if logits.device.type == "cpu" else rows
    top_p = torch.ones_like(temperatures) if top_p is None else top_p
    parts = [
        _sample(logits[rows], temperatures[rows], uniforms[rows], top_p[rows])
        for rows in (slice(start, start + rows_at_once) for start in range(0, rows, rows_at_once))
    ]
    tokens, logprobs, top = zip(*parts, strict=True)
    return torch.cat(tokens), torch.cat(logprobs), torch.cat(top)


def _sample(
    logits: Float[Tensor, "rows vocab"],
    temperatures: Float[Tensor, "rows"],
    uniforms: Float[Tensor, "rows"],
    top_p: Float[Tensor, "rows"],
) -> tuple[Int[Tensor, "rows"], Float[Tensor, "rows"], Float[Tensor, "rows"]]:
    is_greedy = temperatures == 0
    logprobs = (logits.float() / torch.where(is_greedy, 1.0, temperatures)[:, None]).log_softmax(-1)
    if bool((top_p < 1).any()):
        logprobs = nucleus(logprobs, torch.where(is_greedy, 1.0, top_p))
    cumulative = logprobs.double().exp_()
    torch.cumsum(cumulative, -1, out=cumulative)
    threshold = uniforms * cumulative[:, -1]
    tokens = torch.searchsorted(cumulative, threshold[:, None], right=True)[:, 0]
    tokens = tokens.clamp(max=logits.shape[-1] - 1)  # u·total can round up to the total
    if bool(is_greedy.any()):
        tokens = torch.where(is_greedy, logprobs.argmax(-1), tokens)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0], logprobs.amax(-1)


def nucleus(logprobs: Float[Tensor, "rows vocab"], top_p: Float[Tensor, "rows"]) -> Float[Tensor, "rows vocab"]:
    """Restrict each distribution to the smallest set of most likely tokens with mass ≥ `top_p`, and renormalise.

    Source: Holtzman et al. 2020, Eq. 2–3. Among equally likely tokens the lower ids stay; 1 leaves a row as it is.

    Example:
        >>> nucleus(torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([0.6])).exp()
        tensor([[0.6250, 0.3750, 0.0000]])
    """
    descending, order = logprobs.sort(dim=-1, descending=True, stable=True)
    mass_before = descending.double().exp().cumsum(-1) - descending.double().exp()
    outside = mass_before >= top_p[:, None]
    cut = logprobs.masked_fill(outside.gather(-1, order.argsort(-1)), -torch.inf)
    return torch.where((top_p < 1)[:, None], cut.log_softmax(-1), logprobs)


def uniforms(seed: int, count: int) -> Float[Tensor, "count"]:
    """The uniform numbers of one sample, one per token, in [0, 1), float64. They depend on the seed alone.

    torch's CPU generator would ignore the upper half of the seed.
    """
    return torch.from_numpy(numpy.random.default_rng(seed).random(count))
