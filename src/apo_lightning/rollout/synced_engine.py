"""What all engines share: the order of calls, the checks before any work, the audit of every sync."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

import torch
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig

from apo_lightning.errors import ConfigError, StaleWeightsError
from apo_lightning.rollout.engine import EngineContext, FinishedListener
from apo_lightning.rollout.weight_audit import WeightAudit, first, parameter_shapes
from apo_lightning.rollout.weight_sample import HeldPart, WeightSample, not_as_sent
from apo_lightning.types import Completion, GenerationRequest

_logger = logging.getLogger(__name__)

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 2.0  # vLLM moves what is below silently, and refuses what is above


class _State(Enum):
    """The stage of an engine's life; the values complete "the engine …"."""

    NEW = "was never set up: call setup first"
    UNSYNCED = "has no weights: call sync_weights first"
    DIRTY = "holds a half-finished weight sync: call sync_weights again with every parameter"
    READY = "is ready"
    ASLEEP = "is asleep: call wake and sync_weights first"
    CLOSED = "is closed: make a new one"


class SyncedEngine(ABC):
    """A `RolloutEngine` whose calls are checked before the backend sees them."""

    name: str

    def __init__(self):
        self._state = _State.NEW
        self._version = -1
        self._has_synced = False
        self.num_preempted = 0
        self._shapes: dict[str, torch.Size] = {}
        self._vocab_size = 0
        self._dtype = torch.float32

    @property
    def dtype(self) -> torch.dtype:
        """See `RolloutEngine.dtype`."""
        return self._dtype

    @abstractmethod
    def check(self, device: torch.device) -> None:
        """See `RolloutEngine.check`."""

    def check_model(self, config: PretrainedConfig, device: torch.device) -> None:
        """See `RolloutEngine.check_model`. An engine that does not say otherwise runs any."""
        return

    def setup(self, context: EngineContext) -> None:
        """See `RolloutEngine.setup`."""
        self._require(_State.NEW)
        self.check(context.device)
        if not (context.model_dir / "config.json").is_file():
            raise ConfigError(f"{context.model_dir} has no config.json: the engine needs a Hugging Face model folder")
        config = AutoConfig.from_pretrained(context.model_dir)
        self.check_model(config, context.device)
        self._shapes = parameter_shapes(context.model_dir)
        self._vocab_size = config.get_text_config().vocab_size
        self.context = context
        self._dtype = context.dtype
        self._start(context)
        self._state = _State.UNSYNCED

    def sync_weights(self, named_weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        """See `RolloutEngine.sync_weights`."""
        self._require(_State.UNSYNCED, _State.DIRTY, _State.READY)
        self._state = _State.DIRTY
        audit = WeightAudit(self._shapes, version)
        left_out = self._load(audit.watch(named_weights))
        audit.verify()
        if left_out:
            raise StaleWeightsError(f"the {self.name} engine did not take all weights: {'; '.join(left_out)}")
        self._compare(audit.samples, version)
        self._version = version
        self._state = _State.READY

    def _compare(self, samples: Mapping[str, WeightSample], version: int) -> None:
        """Hold what the backend shows of its weights against what it was sent."""
        shown = list(self._held(samples))
        unseen = samples.keys() - {part.name for part in shown}
        if unseen and not self._has_synced:
            counts = self.name, len(unseen), len(samples)
            _logger.warning("the %s engine does not show %d of %d parameters (%s)", *counts, first(sorted(unseen)))
        if stale := not_as_sent(samples, shown):
            raise StaleWeightsError(
                f"stale weights in the engine: after the sync to policy version {version} the {self.name} engine holds "
                f"{len(stale)} of {len(samples)} parameters otherwise than they were sent ({first(stale)})"
            )
        self._has_synced = True

    def generate(
        self, requests: Sequence[GenerationRequest], on_finished: FinishedListener | None = None
    ) -> list[Completion]:
        """See `RolloutEngine.generate`."""
        self._require(_State.READY)
        for request in requests:
            check_request(request, self.context.max_model_len, self._vocab_size)
        self.num_preempted = 0
        if not requests:
            return []
        completions: dict[int, Completion] = {}

        def finished(index: int, completion: Completion) -> None:
            completions[index] = completion
            if on_finished is not None:
                on_finished(index, completion)

        self._sample(requests, finished)
        if self.num_preempted:
            _logger.warning(
                "%d times a sequence lost its keys and values to others and was computed again: give more "
                "kv_cache_gib, or a smaller max_num_seqs",
                self.num_preempted,
            )
        return [completions[index] for index in range(len(requests))]

    def sleep(self) -> None:
        """See `RolloutEngine.sleep`."""
        if self._state is _State.ASLEEP:
            return
        self._require(_State.UNSYNCED, _State.DIRTY, _State.READY)
        self._release_memory()
        self._state = _State.ASLEEP

    def wake(self) -> None:
        """See `RolloutEngine.wake`."""
        if self._state is not _State.ASLEEP:
            self._require(_State.UNSYNCED, _State.DIRTY, _State.READY)
            return
        self._claim_memory()
        self._state = _State.UNSYNCED

    def close(self) -> None:
        """See `RolloutEngine.close`."""
        if self._state not in (_State.NEW, _State.CLOSED):
            self._stop()
        self._state = _State.CLOSED

    def _require(self, *allowed: _State) -> None:
        if self._state in allowed:
            return
        error = StaleWeightsError if self._state in (_State.UNSYNCED, _State.DIRTY) else RuntimeError
        raise error(f"the {self.name} engine {self._state.value}")

    @abstractmethod
    def _start(self, context: EngineContext) -> None: ...

    @abstractmethod
    def _load(self, named_weights: Iterator[tuple[str, Tensor]]) -> Sequence[str]:
        """Read the stream to its end; what the backend says it did not load."""

    def _held(self, samples: Mapping[str, WeightSample]) -> Iterable[HeldPart]:
        """The parts of the weights that the backend holds, read from where it computes; none where it cannot tell."""
        return ()

    @abstractmethod
    def _sample(self, requests: Sequence[GenerationRequest], finished: FinishedListener) -> None:
        """Tell `finished` of every request, once; when it raises, leave nothing running."""

    @abstractmethod
    def _release_memory(self) -> None: ...

    @abstractmethod
    def _claim_memory(self) -> None: ...

    @abstractmethod
    def _stop(self) -> None: ...


def check_request(request: GenerationRequest, max_model_len: int, vocab_size: int) -> None:
    """Refuse what no engine can serve: one bad request would end the whole call in the middle.

    Example:
        >>> check_request(GenerationRequest(prompt_token_ids=(1, 2), seed=0, max_new_tokens=7), 8, 100)
        Traceback (most recent call last):
        apo_lightning.errors.ConfigError: prompt of 2 + max_new_tokens of 7 = 9 tokens, but max_model_len is 8: \
shorten one or raise the other
    """
    prompt_tokens, new_tokens = len(request.prompt_token_ids), request.max_new_tokens
    if prompt_tokens == 0:
        raise ConfigError("a prompt has no tokens: give it at least a beginning-of-sequence token")
    if new_tokens < 1:
        raise ConfigError(f"max_new_tokens is {new_tokens}: it must be at least 1")
    if prompt_tokens + new_tokens > max_model_len:
        raise ConfigError(
            f"prompt of {prompt_tokens} + max_new_tokens of {new_tokens} = {prompt_tokens + new_tokens} tokens, "
            f"but max_model_len is {max_model_len}: shorten one or raise the other"
        )
    if request.temperature != 0 and not MIN_TEMPERATURE <= request.temperature <= MAX_TEMPERATURE:
        raise ConfigError(
            f"temperature is {request.temperature}: it must be 0 (greedy) or in [{MIN_TEMPERATURE}, {MAX_TEMPERATURE}]"
        )
    if not 0 < request.top_p <= 1:
        raise ConfigError(f"top_p is {request.top_p}: it must be in (0, 1], where 1 samples from all tokens")
    if not 0 <= request.seed < 2**63:
        raise ConfigError(f"sample seed {request.seed} is outside [0, 2⁶³)")
    highest, lowest = max(request.prompt_token_ids), min(request.prompt_token_ids)
    if lowest < 0 or highest >= vocab_size:
        worst = lowest if lowest < 0 else highest
        raise ConfigError(f"prompt token {worst} is outside the model's vocabulary of {vocab_size}: wrong tokenizer?")
