"""The trained language model, the reference that it is compared with, and how both score a micro-batch."""

import contextlib
import copy
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule
from transformers import AttentionInterface, PreTrainedModel, PreTrainedTokenizerBase

from apo_lightning.common.files import naming, write_atomically
from apo_lightning.common.hashing import hash64
from apo_lightning.common.process_group import has_process_group, process_rank
from apo_lightning.errors import ConfigError, in_brief
from apo_lightning.logprobs import DetachedHead, reference_statistics, token_statistics
from apo_lightning.model.architecture import check_length
from apo_lightning.model.attention import SHARED_PROMPTS, attend_registered, attention_arguments, use_shared_prompts
from apo_lightning.model.lora import adapters_off, has_adapters, merged_parameters, on_first_rank, persistent_buffers
from apo_lightning.model.packing import Microbatch
from apo_lightning.model.tokenizer import stop_token_ids
from apo_lightning.types import ReferenceStatistics, TokenStatistics


class Policy(nn.Module):
    """A causal language model that returns statistics of chosen tokens, never logits of a whole batch."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        compute_dtype: torch.dtype,
        stop_tokens: Sequence[str] = (),
        *,
        compiles_layers: bool = False,
    ) -> None:
        super().__init__()
        use_shared_prompts(model)
        self.model = model
        self.tokenizer = tokenizer
        self.compute_dtype = compute_dtype
        self.stop_tokens = tuple(stop_tokens)
        self.compiles_layers = compiles_layers
        self.is_rounded_when_frozen = True
        """False: a frozen copy keeps its matrices in float32, since they are averaged with others."""

    @property
    def head_weight(self) -> Float[Tensor, "vocab hidden"]:
        """The matrix from hidden states to logits."""
        weight = self.model.get_output_embeddings().weight  # pyright: ignore[reportOptionalMemberAccess]
        assert isinstance(weight, Tensor)
        return weight

    @torch.no_grad()
    def reset_attached(self) -> None:
        """Set what parts have attached to zero: no weight of `model`, so none that is exported or synchronised."""
        for name, parameter in self.named_parameters():
            if not name.startswith("model."):
                parameter.zero_()

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """All tokens that end a completion, ascending."""
        generation = self.model.generation_config
        declared = generation.eos_token_id if generation is not None else None
        return stop_token_ids(self.tokenizer, declared, self.stop_tokens)

    def autocast(self) -> torch.autocast:
        """Context of forward passes: float32 weights, matrix products in `compute_dtype`."""
        device = self.head_weight.device.type
        return torch.autocast(device, dtype=self.compute_dtype, enabled=self.compute_dtype != torch.float32)

    def round_matrices(self) -> None:
        """Cast the layers' matrices to `compute_dtype` for a frozen policy: half the memory in bfloat16.

        Log-probs are the same to the bit, as autocast would cast the matrices in every pass. Embedding and norms, and
        so the residual stream, stay in float32: with all weights in bfloat16 log-probs change by 0.007 nats a token for
        `model=tiny` and 0.07 for SmolLM2-135M on random tokens.
        """
        for module in self.model.base_model.modules():
            if isinstance(module, nn.Linear):
                module.to(self.compute_dtype)

    @contextlib.contextmanager
    def rounded_residuals(self) -> Iterator[None]:
        """Context in which the residual stream is in `compute_dtype` from the embedding on, as in an engine.

        All summands have that dtype under autocast, and rotary tables take their dtype from the stream.
        """
        embedding = self.model.get_input_embeddings()
        hook = embedding.register_forward_hook(lambda module, ids, hidden: hidden.to(self.compute_dtype))
        try:
            yield
        finally:
            hook.remove()

    def compile_layers(self) -> None:
        """Compile the decoder layers, each at its first run, if the policy `compiles_layers`.

        Norms, rotation, activation, sums and casts are fused. Attention keeps its kernels and splits a layer into two
        graphs, which all layers share and which hold for any number of positions. Call it after sharding and adapters,
        whose hooks and matrices it keeps; a second call changes nothing, and a copy of a policy is not compiled.

        Departure: a compiled kernel does not round intermediate values to the compute dtype, and a forward with a
        gradient keeps other values than one without. In bfloat16 their log-probs differ by rounding; eager ones are
        equal to the bit.
        """
        if self.compiles_layers:
            # Traced, its loops over prompts and completions would make a graph for each layout.
            AttentionInterface.register(SHARED_PROMPTS, torch.compiler.disable(attend_registered))
            for layer in cast(nn.ModuleList, self.model.base_model.layers):
                layer.compile(dynamic=True)

    def hidden_states(self, microbatch: Microbatch) -> Float[Tensor, "tokens hidden"]:
        """Last hidden states at the positions that predict the response tokens, by one forward of the backbone."""
        return self.run_backbone(microbatch)

    def run_backbone(self, microbatch: Microbatch) -> Float[Tensor, "tokens hidden"]:
        """`hidden_states`, for methods around which sharded weights are gathered.

        `hidden_states` is such a method; called from another one it would reshard the head before it is read.
        """
        longest = max(g.beginning + g.prompt_length + max(g.completion_lengths) for g in microbatch.groups)
        check_length(self.model.config, longest, "shorten prompts or completions")
        with self.autocast():
            output = self.model.base_model(
                input_ids=microbatch.input_ids[None],
                position_ids=microbatch.position_ids[None],
                use_cache=False,
                **attention_arguments(microbatch.groups, microbatch.input_ids.device),
            )
        return output.last_hidden_state[0].index_select(0, microbatch.rows)

    def forward(
        self,
        microbatch: Microbatch,
        anchor_ids: Int[Tensor, "tokens anchors"] | None = None,
        *,
        temperature: float = 1.0,
    ) -> TokenStatistics:
        """Statistics of the response tokens, with log-probs at `anchor_ids`, the reference's top K, if they are given.

        `temperature` is the rollout's, and the same for policy, old policy and reference.
        """
        return self.read_head(self.run_backbone(microbatch), microbatch.targets, anchor_ids, temperature=temperature)

    def read_head(
        self,
        hidden: Float[Tensor, "tokens hidden"],
        targets: Int[Tensor, "tokens"],
        anchor_ids: Int[Tensor, "tokens anchors"] | None = None,
        *,
        temperature: float,
    ) -> TokenStatistics:
        """Statistics of the response tokens from the `hidden_states` of a micro-batch."""
        with self.autocast():
            return token_statistics(hidden, self.head_weight, targets, anchor_ids, temperature=temperature)

    def detached_head(self, hidden: Float[Tensor, "tokens hidden"], *, temperature: float) -> DetachedHead:
        """The head over the `hidden_states` of a micro-batch, for a loss whose gradient is taken chunk by chunk."""
        with self.autocast():
            return DetachedHead(hidden, self.head_weight, temperature=temperature)

    def as_reference(self, microbatch: Microbatch, anchor_size: int, *, temperature: float) -> ReferenceStatistics:
        """Log-probs of the response tokens and the own top K of a frozen policy."""
        return self.read_top(self.run_backbone(microbatch), microbatch.targets, anchor_size, temperature=temperature)

    def read_top(
        self, hidden: Float[Tensor, "tokens hidden"], targets: Int[Tensor, "tokens"], k: int, *, temperature: float
    ) -> ReferenceStatistics:
        """`as_reference`, from the `hidden_states` of a micro-batch."""
        with self.autocast():
            return reference_statistics(hidden, self.head_weight, targets, k, temperature=temperature)

    def save_pretrained(self, folder: Path) -> None:
        """Write a Hugging Face folder with adapters merged, on the first rank; all ranks must call it."""
        weights = None
        if has_adapters(self.model):
            buffers = persistent_buffers(self.model)
            weights = on_first_rank(chain(merged_parameters(self.model), buffers.items()))
        elif has_process_group():
            options = StateDictOptions(full_state_dict=True, cpu_offload=True)
            weights = get_model_state_dict(self.model, options=options)
        if process_rank() == 0:
            with naming(folder):
                self.model.save_pretrained(folder, state_dict=weights)
                self.tokenizer.save_pretrained(folder)

    def architecture_folder(self) -> Path:
        """A folder with the model's config and no weights, from which an engine starts before its first sync.

        Its path is `$XDG_CACHE_HOME/apo-lightning/architectures/<hash of the config>`, by default below `~/.cache`, for
        all ranks and runs of an architecture: with another path vLLM would compile again, as it keys its cache by it.

        Raises:
            ConfigError: the folder cannot be written.
        """
        config = self.model.config.to_json_string()
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        try:
            folder = Path(cache).expanduser() / "apo-lightning" / "architectures" / hash64(config).hex()
            if not (file := folder / "config.json").is_file() or file.read_text() != config:
                write_atomically(file, config.encode())
        except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
            raise ConfigError(
                f"the engine's model config cannot be written to the cache folder {cache} ({in_brief(error)}): "
                "set XDG_CACHE_HOME to a folder that every rank can write"
            ) from error
        return folder


class Reference:
    """π_ref: a copy of the policy without gradients or, with adapters, the policy with its adapters switched off.

    Training changes the adapters alone, and the head has none, so without them it is the model before training.

    A copy that `is_mixed`, averaged with the policy during the run, stays in float32, and autocast rounds it in every
    pass. Any other has rounded matrices: they are those that autocast would multiply by.

    Not an `nn.Module`: registered as one, its weights would enter checkpoints, the optimizer and gradient
    synchronisation.
    """

    def __init__(self, policy: Policy, *, is_mixed: bool = False) -> None:
        self._is_copy = not has_adapters(policy.model)
        self.policy = copy.deepcopy(policy).eval().requires_grad_(False) if self._is_copy else policy
        self.policy.is_rounded_when_frozen = not is_mixed

    @property
    def copies(self) -> list[Policy]:
        """Additional models, which must be sharded like the policy."""
        return [self.policy] if self._is_copy else []

    def to(self, device: torch.device) -> None:
        """Move a copy's weights and round its matrices, unless it is mixed; shards stay where sharding placed them."""
        if self._is_copy and not isinstance(self.policy, FSDPModule):
            self.policy.to(device)
            if self.policy.is_rounded_when_frozen:
                self.policy.round_matrices()

    def _as_reference(self) -> contextlib.AbstractContextManager[None]:
        """Context in which `self.policy` computes the reference."""
        return contextlib.nullcontext() if self._is_copy else adapters_off(self.policy.model)

    @torch.no_grad()
    def score(self, microbatch: Microbatch, anchor_size: int, *, temperature: float) -> ReferenceStatistics:
        """log π_ref and the top `anchor_size` tokens at the micro-batch's response tokens; 0: no anchors."""
        with self._as_reference():
            return self.policy.as_reference(microbatch, anchor_size, temperature=temperature)

    @torch.no_grad()
    def hidden_states(self, microbatch: Microbatch) -> Float[Tensor, "tokens hidden"]:
        """The reference's last hidden states at the response tokens, for the exact KL."""
        with self._as_reference():
            return self.policy.hidden_states(microbatch)

    @property
    def head_weight(self) -> Float[Tensor, "vocab hidden"]:
        """The reference's own head."""
        return self.policy.head_weight
