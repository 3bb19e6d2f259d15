"""The base class of the engines that sample completions, what it must know of the run, and its check of new weights."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from apo_lightning.errors import ConfigError, StaleWeightsError
from apo_lightning.types import Completion, GenerationRequest

_logger = logging.getLogger(__name__)

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 2.0  # vLLM silently raises smaller values to 0.01 and refuses larger ones

FinishedListener = Callable[[int, Completion], None]
"""Called with the index of a request and its completion as soon as the completion is finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """What an engine must know of the run before it starts; equal on all ranks except for the rank fields."""

    model_dir: Path
    """A Hugging Face folder with `config.json`, read during `setup` only. `sync_weights` brings the weights."""
    dtype: torch.dtype
    """The dtype of the engine's weights and activations; log-probs are always float32."""
    max_model_len: int
    """The longest prompt + completion [tokens]."""
    device: torch.device
    seed: int
    """The run's seed. Samples depend only on the seeds of their requests."""
    global_rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    """Number of ranks of the run; above 1, torch.distributed must be initialised."""


class _State(Enum):
    """The state of an engine; the values complete the sentence "the engine …"."""

    NEW = "was never set up: call setup first"
    UNSYNCED = "has no weights: call sync_weights first"
    DIRTY = "holds a half-finished weight sync: call sync_weights again with every parameter"
    READY = "is ready"
    ASLEEP = "is asleep: call wake and sync_weights first"
    CLOSED = "is closed: make a new one"


class RolloutEngine(ABC):
    """Samples completions from its own copy of the policy, in the trainer's process.

        check, check_model → setup → (sync_weights → generate* → [sleep → wake])* → close

    An engine starts without weights and loses them in `sleep`; it generates only after a complete `sync_weights`.
    Log-probs are those of the distribution sampled from, softmax(logits / temperature); a greedy request
    (temperature 0) reports softmax(logits). With `top_p` < 1 the distribution is cut to the nucleus and renormalised.
    The result of `generate` depends only on the weights and the requests, not on earlier calls.

    `setup`, `sync_weights` and `close` are collective when `world_size` > 1; `generate` is not.
    No method changes the process: random states, threads, environment and gradient mode stay as they were.

    A subclass implements `check` and the methods with an underscore, which are called in a valid order only.
    """

    name: str
    """The engine's name in the log and the summary."""

    def __init__(self):
        self._state = _State.NEW
        self._version = -1
        self.shapes: dict[str, torch.Size] = {}
        """Shape of every weight of the model, by Hugging Face name; known after `setup`."""
        self.unread: set[str] | None = None
        """The weights that `held` does not show; None before the first sync."""
        self._vocab_size = 0
        self.num_preempted = 0
        """How often the last `generate` evicted a sequence's keys and values for lack of memory and recomputed them.

        The completions are the same but take longer.
        """

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the engine takes weights; known after `setup`."""
        return self.context.dtype

    @abstractmethod
    def check(self, device: torch.device) -> None:
        """Raise `ConfigError` if this engine cannot run here; loads nothing."""

    def check_model(self, config: PretrainedConfig, device: torch.device) -> None:
        """Raise `ConfigError` if this engine cannot run this model on this device; loads nothing."""
        return

    def setup(self, context: EngineContext) -> None:
        """Start without weights, after torch.distributed was initialised and the policy was sharded."""
        self._require(_State.NEW)
        self.check(context.device)
        if not (context.model_dir / "config.json").is_file():
            raise ConfigError(f"{context.model_dir} has no config.json: the engine needs a Hugging Face model folder")
        config = AutoConfig.from_pretrained(context.model_dir)
        self.check_model(config, context.device)
        self.shapes = parameter_shapes(context.model_dir)
        self._vocab_size = config.get_text_config().vocab_size
        self.context = context
        self._start(context)
        self._state = _State.UNSYNCED

    def sync_weights(self, named_weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        """Copy every parameter of the policy, by Hugging Face name, each exactly once.

        A tied head comes twice, as `model.embed_tokens.weight` and as `lm_head.weight`. The iterator is read to its
        end even after an error, since reading it may be a collective operation.

        Raises:
            StaleWeightsError: a name is missing, unknown or given twice, or a shape differs. The engine then refuses to
                generate until a complete sync.
        """
        self._require(_State.UNSYNCED, _State.DIRTY, _State.READY)
        self._state = _State.DIRTY
        audit = WeightAudit(self.shapes)
        self._load(audit.watch(named_weights))
        audit.verify()
        self._version = version
        self._state = _State.READY

    def held(self, name: str, columns: slice) -> Tensor | None:
        """These columns (`columns_of`) of a weight as the engine computes with it; None if it cannot be read."""
        return None

    def generate(
        self, requests: Sequence[GenerationRequest], on_finished: FinishedListener | None = None
    ) -> list[Completion]:
        """Return one completion per request, in the order of the requests.

        Args:
            requests: all of a step in one call, so that no sequence waits for another call's slowest one.
            on_finished: called once per request, in the order in which they finish, in this thread and between two
                forwards, which wait for it. An exception from it ends the call; the engine is then ready for the next
                one.

        Raises:
            ConfigError: a request can never be served (too long, empty, a temperature out of range).
            StaleWeightsError: no complete sync since `setup`, `wake` or a failed sync.
        """
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
                "%d preemptions: sequences lost their keys and values for lack of memory and were recomputed; raise "
                "kv_cache_gib or lower max_num_seqs",
                self.num_preempted,
            )
        return [completions[index] for index in range(len(requests))]

    def sleep(self) -> None:
        """Free the accelerator's memory; the weights are lost. Does nothing if the engine is asleep."""
        if self._state is _State.ASLEEP:
            return
        self._require(_State.UNSYNCED, _State.DIRTY, _State.READY)
        self._release_memory()
        self._state = _State.ASLEEP

    def wake(self) -> None:
        """Allocate memory for the weights; call `sync_weights` next. Does nothing if the engine is awake."""
        if self._state is not _State.ASLEEP:
            self._require(_State.UNSYNCED, _State.DIRTY, _State.READY)
            return
        self._claim_memory()
        self._state = _State.UNSYNCED

    def close(self) -> None:
        """Free everything. The trainer's process group survives. A second call does nothing."""
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
    def _load(self, named_weights: Iterator[tuple[str, Tensor]]) -> None: ...

    @abstractmethod
    def _sample(self, requests: Sequence[GenerationRequest], finished: FinishedListener) -> None:
        """Call `finished` once per request; if it raises, leave no request running."""

    @abstractmethod
    def _release_memory(self) -> None: ...

    @abstractmethod
    def _claim_memory(self) -> None: ...

    @abstractmethod
    def _stop(self) -> None: ...


def check_distribution(temperature: float, top_p: float) -> None:
    """Raise `ConfigError` for a distribution that no engine samples from."""
    if temperature != 0 and not MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
        raise ConfigError(
            f"temperature is {temperature}: it must be 0 (greedy) or in [{MIN_TEMPERATURE}, {MAX_TEMPERATURE}]"
        )
    if not 0 < top_p <= 1:
        raise ConfigError(f"top_p is {top_p}: it must be in (0, 1], where 1 samples from all tokens")


def check_request(request: GenerationRequest, max_model_len: int, vocab_size: int) -> None:
    """Raise `ConfigError` for a request that no engine can serve; it would end the whole call halfway."""
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
    check_distribution(request.temperature, request.top_p)
    if not 0 <= request.seed < 2**63:
        raise ConfigError(f"sample seed {request.seed} is outside [0, 2⁶³)")
    highest, lowest = max(request.prompt_token_ids), min(request.prompt_token_ids)
    if lowest < 0 or highest >= vocab_size:
        worst = lowest if lowest < 0 else highest
        raise ConfigError(f"prompt token {worst} is outside the model's vocabulary of {vocab_size}: wrong tokenizer?")


def parameter_shapes(model_dir: Path) -> dict[str, torch.Size]:
    """Shapes of all that a checkpoint holds, by Hugging Face name, a tied head under both names; allocates nothing."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_dir))
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def columns_of(weight: Tensor, columns: slice) -> Tensor:
    """Columns of a tensor, whose first dimension is the rows: a vector has one column."""
    return weight.detach().reshape(*weight.shape[:1] or (1,), -1)[:, columns]


class WeightAudit:
    """Checks a stream of weights on its way to the engine.

    It raises nothing while the stream runs, which would leave the receiving model half rebuilt and the other ranks
    waiting in a collective. Bad items are withheld, an exception of the source ends the stream, and `verify` reports
    all of them afterwards.

    Args:
        expected: shape of every parameter.
    """

    def __init__(self, expected: Mapping[str, torch.Size]):
        self._expected = expected
        self._seen: set[str] = set()
        self._problems: dict[str, list[str]] = {"missing": [], "unknown": [], "given twice": [], "of another shape": []}
        self._source_error: Exception | None = None

    def watch(self, named_weights: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Pass the stream on, without items that must not be loaded."""
        try:
            for name, weight in named_weights:
                if name not in self._expected:
                    self._problems["unknown"].append(name)
                elif name in self._seen:
                    self._problems["given twice"].append(name)
                else:
                    self._seen.add(name)
                    if weight.shape == self._expected[name]:
                        yield name, weight
                    else:
                        self._problems["of another shape"].append(name)
        except Exception as error:
            self._source_error = error

    def verify(self) -> None:
        """Raise the source's exception, or `StaleWeightsError` if the sync was incomplete."""
        if self._source_error is not None:
            raise self._source_error
        self._problems["missing"] = [name for name in self._expected if name not in self._seen]
        found = [
            f"{len(names)} {problem} ({', '.join(names[:5])}{', …' * (len(names) > 5)})"
            for problem, names in self._problems.items()
            if names
        ]
        if found:
            raise StaleWeightsError(f"incomplete weight sync: {'; '.join(found)}")
