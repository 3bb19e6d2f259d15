"""Sampling with plain transformers: slow, exact and without a further dependency."""

from collections.abc import Iterator, Sequence

import numpy
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from apo_lightning.errors import ConfigError
from apo_lightning.rollout.base import SyncedEngine
from apo_lightning.rollout.engine import EngineContext
from apo_lightning.types import Completion, GenerationRequest


class TransformersEngine(SyncedEngine):
    """Samples with a second copy of the model, synced by name like any other engine.

    Each sample draws its uniforms from a generator of its own, so in float32 its tokens do not depend on what else
    is in the batch.

    Args:
        sequences_per_batch: The most completions decoded at once.
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
        self._parameters = dict(self._model.named_parameters(remove_duplicate=False))

    def _load(self, named_weights: Iterator[tuple[str, Tensor]]) -> Sequence[str]:
        with torch.no_grad():
            for name, weight in named_weights:
                self._parameters[name].copy_(weight)
        return ()

    def _sample(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        completions: list[Completion] = []
        with torch.inference_mode():
            for start in range(0, len(requests), self.sequences_per_batch):
                batch = _Batch(requests[start : start + self.sequences_per_batch], self.context.device)
                batch.advance(batch.spread(self._last_logits(batch)))
                while batch.rows:
                    batch.advance(self._last_logits(batch))
                completions.extend(batch.completions(self._version))
        return completions

    def _last_logits(self, batch: "_Batch") -> Float[Tensor, "rows vocab"]:
        return self._model(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            past_key_values=batch.cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]

    def _release_memory(self) -> None:
        self._model.cpu()

    def _claim_memory(self) -> None:
        self._model.to(self.context.device)

    def _stop(self) -> None:
        del self._model, self._parameters


class _Batch:
    """Left-padded sequences that grow by one token a forward; finished ones leave.

    The first forward reads each prompt once, however many completions it has; `spread` then gives every request a
    row of its own.
    """

    def __init__(self, requests: Sequence[GenerationRequest], device: torch.device):
        self.requests = requests
        self.rows = list(range(len(requests)))
        """Requests still running, one a row of the tensors below (after `spread`)."""
        self.cache = DynamicCache()
        prompts = list(dict.fromkeys(request.prompt_token_ids for request in requests))
        self._prompt_rows = torch.tensor([prompts.index(request.prompt_token_ids) for request in requests])
        width = max(map(len, prompts))
        padding = [width - len(prompt) for prompt in prompts]
        self.input_ids = torch.tensor(
            [[0] * pad + list(prompt) for pad, prompt in zip(padding, prompts, strict=True)], device=device
        )
        self.attention_mask = (torch.arange(width) >= torch.tensor(padding)[:, None]).long().to(device)
        # Counted from the first real token: the model must not see where the padding ends.
        self.position_ids = (self.attention_mask.cumsum(1) - 1).clamp(min=0)
        self.temperatures = torch.tensor([request.temperature for request in requests], device=device)
        self.top_p = torch.tensor([request.top_p for request in requests], device=device)
        self._uniforms = [_uniforms(request.seed, request.max_new_tokens) for request in requests]
        self._token_ids: list[list[int]] = [[] for _ in requests]
        self._logprobs: list[list[float]] = [[] for _ in requests]

    def spread(self, logits: Float[Tensor, "prompts vocab"]) -> Float[Tensor, "rows vocab"]:
        """From one row a prompt to one row a request."""
        index = self._prompt_rows.to(logits.device)
        self.cache.batch_select_indices(index)
        self.position_ids, self.attention_mask = self.position_ids[index], self.attention_mask[index]
        return logits[index]

    def advance(self, logits: Float[Tensor, "rows vocab"]) -> None:
        """Append one token to every row, then keep the rows that are not finished."""
        step = len(self._token_ids[self.rows[0]])
        uniforms = torch.stack([self._uniforms[request][step] for request in self.rows]).to(logits.device)
        tokens, logprobs = sample_tokens(logits, self.temperatures, uniforms, self.top_p)
        for request, token, logprob in zip(self.rows, tokens.tolist(), logprobs.tolist(), strict=True):
            self._token_ids[request].append(token)
            self._logprobs[request].append(logprob)
        self.input_ids = tokens[:, None]
        self.position_ids = self.position_ids[:, -1:] + 1
        self.attention_mask = torch.cat([self.attention_mask, torch.ones_like(self.input_ids)], dim=1)
        running = [row for row, request in enumerate(self.rows) if not self._is_finished(request)]
        if len(running) < len(self.rows):
            self._keep(running)

    def completions(self, version: int) -> list[Completion]:
        """What was sampled, in the order of the requests."""
        return [
            Completion(
                token_ids=tuple(token_ids),
                logprobs=tuple(logprobs),
                finish_reason="stop" if token_ids[-1] in request.stop_token_ids else "length",
                policy_version=version,
            )
            for request, token_ids, logprobs in zip(self.requests, self._token_ids, self._logprobs, strict=True)
        ]

    def _is_finished(self, request: int) -> bool:
        token_ids, asked = self._token_ids[request], self.requests[request]
        return len(token_ids) == asked.max_new_tokens or token_ids[-1] in asked.stop_token_ids

    def _keep(self, rows: list[int]) -> None:
        self.rows = [self.rows[row] for row in rows]
        if not rows:
            return
        index = torch.tensor(rows, device=self.input_ids.device)
        self.cache.batch_select_indices(index)
        self.input_ids, self.position_ids = self.input_ids[index], self.position_ids[index]
        self.attention_mask, self.temperatures = self.attention_mask[index], self.temperatures[index]
        self.top_p = self.top_p[index]


def sample_tokens(
    logits: Float[Tensor, "rows vocab"],
    temperatures: Float[Tensor, "rows"],
    uniforms: Float[Tensor, "rows"],
    top_p: Float[Tensor, "rows"] | None = None,
) -> tuple[Int[Tensor, "rows"], Float[Tensor, "rows"]]:
    """One token a row by inverting the distribution function of softmax(logits / temperature).

        token = min {v : Σ_{w ≤ v} π(w) > u},   u in [0, 1)

    Args:
        logits: Of any floating dtype; the arithmetic is float32, the sum float64.
        temperatures: 0 takes the most likely token (the first of equals) and reports softmax(logits).
        uniforms: u, float64: float32 has too few values to reach every token of a large vocabulary.
        top_p: sample a row from its nucleus only; None: from all tokens.

    Returns:
        Token ids, and log π of each [nats].

    Example:
        Probabilities 0.25 and 0.75: u = 0.2 falls into the first token, u = 0.3 into the second.

        >>> logits = torch.tensor([[0.25, 0.75]]).log().expand(2, 2)
        >>> uniforms = torch.tensor([0.2, 0.3], dtype=torch.float64)
        >>> tokens, logprobs = sample_tokens(logits, torch.ones(2), uniforms)
        >>> tokens.tolist(), logprobs.exp()
        ([0, 1], tensor([0.2500, 0.7500]))
    """
    is_greedy = temperatures == 0
    scaled = logits.float() / torch.where(is_greedy, 1.0, temperatures)[:, None]
    logprobs = scaled.log_softmax(-1)
    if top_p is not None and bool((top_p < 1).any()):
        logprobs = nucleus(logprobs, torch.where(is_greedy, 1.0, top_p))
    cumulative = logprobs.double().exp().cumsum(-1)
    threshold = uniforms * cumulative[:, -1]
    drawn = torch.searchsorted(cumulative, threshold[:, None], right=True)[:, 0]
    drawn = drawn.clamp(max=logits.shape[-1] - 1)  # u·total can round up to the total
    tokens = torch.where(is_greedy, logprobs.argmax(-1), drawn)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def nucleus(logprobs: Float[Tensor, "rows vocab"], top_p: Float[Tensor, "rows"]) -> Float[Tensor, "rows vocab"]:
    """The distribution cut to the fewest most likely tokens that hold at least `top_p`, and normalised again.

    Source: Holtzman et al. 2020, Eq. 2–3. Of equally likely tokens the lower ids stay.

    Args:
        logprobs: log π [nats], normalised.
        top_p: in (0, 1]; 1 leaves a row as it is.

    Example:
        >>> nucleus(torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([0.6])).exp()
        tensor([[0.6250, 0.3750, 0.0000]])
    """
    descending, order = logprobs.sort(dim=-1, descending=True, stable=True)
    mass_before = descending.double().exp().cumsum(-1) - descending.double().exp()
    outside = mass_before >= top_p[:, None]
    cut = logprobs.masked_fill(outside.gather(-1, order.argsort(-1)), -torch.inf)
    return torch.where((top_p < 1)[:, None], cut.log_softmax(-1), logprobs)


def _uniforms(seed: int, count: int) -> Float[Tensor, "count"]:
    """Drawn up front, so that they depend on the seed alone; torch's CPU generator would drop the seed's upper half."""
    return torch.from_numpy(numpy.random.default_rng(seed).random(count))
