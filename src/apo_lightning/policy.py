"""The language model that is trained: how it is loaded, and how it scores the tokens of a micro-batch."""

import contextlib
import importlib.util
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from apo_lightning.attention import attention_arguments, refuse_unsupported_attention, use_shared_prompts
from apo_lightning.errors import ConfigError
from apo_lightning.logprobs import Objective, full_kl, objective_sum, reference_statistics, token_statistics
from apo_lightning.lora import describe_adapters, has_adapters, merged_weights, save_adapter
from apo_lightning.packing import Microbatch
from apo_lightning.tokenizer import character_tokenizer, stop_token_id
from apo_lightning.types import ReferenceStatistics, TokenStatistics

PACKAGE_PREFIX = "package://"


@dataclass(frozen=True, kw_only=True)
class PolicySpec:
    """Where a model comes from and how it computes. Its fields are the keys of `configs/model/*.yaml`.

    Attributes:
        name: how logs and reports call the model.
        path: a hub id, a local folder, a local `.gguf` file, or `package://<python package>/<file>.gguf` for a file
            inside an installed package. None: a random model from `config`, with the project's character tokenizer.
        config: `transformers` config fields of a random model, `model_type` among them; None otherwise.
        prompt_template: for base models, which have no chat template: the text that the policy reads, with
            `{problem}` in it. None: the tokenizer's own chat template.
        stop_tokens: further tokens that end a completion, beside the model's own end-of-sequence (a base model that
            was shown chat data ends its turn with a token that its config does not name).
        compute_dtype: "float32", "bfloat16" or "auto" (bfloat16 where the hardware multiplies it natively). Weights
            and optimizer state are float32 in any case: at learning rates of 1e-6 bfloat16 weights lose most updates.
        gradient_checkpointing: recompute activations in the backward: less memory, about a third more time.
    """

    name: str
    path: str | None = None
    config: Mapping[str, Any] | None = None
    prompt_template: str | None = None
    stop_tokens: tuple[str, ...] | list[str] = ()
    compute_dtype: str = "auto"
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        if (self.path is None) == (self.config is None):
            raise ConfigError(f"model {self.name}: give exactly one of `path` (weights) and `config` (random weights)")
        if self.compute_dtype not in ("auto", "float32", "bfloat16"):
            raise ConfigError(f"model.compute_dtype is {self.compute_dtype!r}: choose auto, float32 or bfloat16")
        if isinstance(self.stop_tokens, str):
            raise ConfigError(
                f"model.stop_tokens is the string {self.stop_tokens!r}: give a list, [{self.stop_tokens!r}]"
            )
        if self.prompt_template is not None and "{problem}" not in self.prompt_template:
            raise ConfigError(f"model.prompt_template of {self.name} has no {{problem}} in it")

    def dtype(self, device: torch.device) -> torch.dtype:
        """The dtype of matrix products on `device`."""
        if self.compute_dtype != "auto":
            return torch.float32 if self.compute_dtype == "float32" else torch.bfloat16
        return torch.bfloat16 if multiplies_bfloat16(device) else torch.float32

    def load_config(self) -> PretrainedConfig:
        """The architecture, without weights.

        Raises:
            ConfigError: the model is neither on this machine nor to be had from the hub.
        """
        if self.config is not None:
            fields = {key: value for key, value in self.config.items() if key != "model_type"}
            return AutoConfig.for_model(self.config["model_type"], vocab_size=len(character_tokenizer()), **fields)
        return self._from_pretrained(AutoConfig)

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer that belongs to the weights.

        Raises:
            ConfigError: it is not to be had, or has no such stop token.
        """
        tokenizer = character_tokenizer() if self.path is None else self._from_pretrained(AutoTokenizer)
        for token in self.stop_tokens:
            stop_token_id(tokenizer, token)
        return tokenizer

    def load_model(self, seed: int) -> PreTrainedModel:
        """The model with float32 weights, on the CPU.

        Args:
            seed: of the random weights where `config` is given; the global RNG is left as it was.

        Raises:
            ConfigError: the model is not to be had, or its attention or head is one that this trainer does not
                compute; the former is seen before any weights are loaded.
        """
        config = self.load_config()
        refuse_unsupported_attention(config)
        if self.path is not None:
            model = self._from_pretrained(AutoModelForCausalLM, dtype=torch.float32)
            _forget_quantization(model)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        return self._checked(model)

    def load_skeleton(self) -> PreTrainedModel:
        """What `load_model` gives, but without weights: parameters and buffers are on the meta device."""
        config = self.load_config()
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        _forget_quantization(model)
        if self.path is not None:
            with contextlib.suppress(OSError):  # without one, what the config says holds
                model.generation_config = GenerationConfig.from_pretrained(self._locate()[0])
        return self._checked(model)

    def _checked(self, model: PreTrainedModel) -> PreTrainedModel:
        refuse_unsupported_head(model)
        # A pretrained model comes in evaluation mode, where transformers recomputes no activations.
        model.train()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0  # dropout would make the policy that is updated another than the one that sampled
        if self.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return model

    def _from_pretrained(self, loader: Any, **kwargs: Any) -> Any:
        folder, gguf_file = self._locate()
        if gguf_file is not None:
            kwargs["gguf_file"] = gguf_file
        try:
            return loader.from_pretrained(folder, **kwargs)
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"model.path={self.path}: not on this machine and not to be had from the hub ({reason}); "
                "give a local folder with model.path=/path/to/model"
            ) from error

    def _locate(self) -> tuple[str, str | None]:
        """(folder or hub id, GGUF file name inside it or None)."""
        assert self.path is not None
        path = inside_package(self.path, "model.path")
        if path.endswith(".gguf"):
            if not Path(path).is_file():
                raise ConfigError(f"model.path={self.path}: there is no file {Path(path).name}")
            return str(Path(path).parent), Path(path).name
        return path, None


def inside_package(path: str, what: str) -> str:
    """Where `package://<python package>/<inner path>` lies on this machine; any other path as it is.

    Args:
        path: as configured; nothing is imported, and the inner path need not exist.
        what: is configured, for the message.

    Raises:
        ConfigError: the package is not installed.

    Example:
        >>> inside_package("some/hub-id", "model.path")
        'some/hub-id'
    """
    if not path.startswith(PACKAGE_PREFIX):
        return path
    package, _, inner = path.removeprefix(PACKAGE_PREFIX).partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ConfigError(
            f"{what}={path}: the Python package {package} is not installed (pip install {package.replace('_', '-')}, "
            "or make setup)"
        )
    return str(Path(spec.origin).parent / inner)


def multiplies_bfloat16(device: torch.device) -> bool:
    """True where bfloat16 matrix products run in hardware: recent GPUs, and CPUs with AMX or AVX512-bf16."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))


def _forget_quantization(model: Any) -> None:
    """A GGUF file is dequantised on load, but leaves marks that make `save_pretrained` refuse the model."""
    for owner, attribute in (
        (model, "hf_quantizer"),
        (model, "quantization_method"),
        (model, "is_quantized"),
        (model.config, "quantization_config"),
        (model.config, "_is_quantized"),
    ):
        vars(owner).pop(attribute, None)


def refuse_unsupported_head(model: PreTrainedModel) -> None:
    """Our head is softmax(h·Wᵀ/τ): anything more would be silently ignored, so such models are refused by name.

    Raises:
        ConfigError: the model caps or scales its logits, or its head has a bias.
    """
    for attribute in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(model.config, attribute, None) not in (None, 1, 1.0):
            raise ConfigError(
                f"{type(model).__name__} transforms its logits ({attribute}="
                f"{getattr(model.config, attribute)}), which this trainer does not compute: choose another model"
            )
    head = model.get_output_embeddings()
    if getattr(head, "bias", None) is not None:
        raise ConfigError(f"{type(model).__name__} has a bias in its head, which this trainer does not compute")


class Policy(nn.Module):
    """A causal language model that returns statistics of chosen tokens, never logits of a whole batch."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        compute_dtype: torch.dtype,
        stop_tokens: Sequence[str] = (),
    ) -> None:
        super().__init__()
        use_shared_prompts(model)
        self.model = model
        self.tokenizer = tokenizer
        self.compute_dtype = compute_dtype
        self.stop_tokens = tuple(stop_tokens)

    @property
    def head_weight(self) -> Float[Tensor, "vocab hidden"]:
        """The matrix from hidden states to logits."""
        weight = self.model.get_output_embeddings().weight  # pyright: ignore[reportOptionalMemberAccess]
        assert isinstance(weight, Tensor)
        return weight

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Every token that ends a completion, ascending."""
        generation = self.model.generation_config
        declared = generation.eos_token_id if generation is not None else None
        ids: list[Any] = [self.tokenizer.eos_token_id, *(declared if isinstance(declared, list) else [declared])]
        ids += [stop_token_id(self.tokenizer, token) for token in self.stop_tokens]
        return tuple(sorted({i for i in ids if i is not None}))

    def autocast(self) -> torch.autocast:
        """The context in which forward passes run: float32 weights, matrix products in `compute_dtype`."""
        device = self.head_weight.device.type
        return torch.autocast(device, dtype=self.compute_dtype, enabled=self.compute_dtype != torch.float32)

    @contextlib.contextmanager
    def rounded_residuals(self) -> Iterator[None]:
        """Forward passes whose residual stream is in `compute_dtype`, as in an engine; it begins at the embedding.

        Everything that is added to it has that dtype under autocast, and rotary tables take theirs from it.
        """
        embedding = self.model.get_input_embeddings()
        hook = embedding.register_forward_hook(lambda module, ids, hidden: hidden.to(self.compute_dtype))
        try:
            yield
        finally:
            hook.remove()

    def hidden_states(self, microbatch: Microbatch) -> Float[Tensor, "tokens hidden"]:
        """Last hidden states at the positions that predict the response tokens.

        One forward of the backbone, in which every prompt and every completion stands once.
        """
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
        ref_hidden: Float[Tensor, "tokens hidden"] | None = None,
        ref_head_weight: Float[Tensor, "vocab hidden"] | None = None,
    ) -> TokenStatistics:
        """Log-prob, entropy, max-prob and anchor log-probs of the micro-batch's response tokens.

        Args:
            microbatch: what to run and where to read it off.
            anchor_ids: the reference's top-K there; None: no anchors.
            temperature: of the rollout; the same for policy, old policy and reference.
            ref_hidden: the reference's hidden states there; with them, `full_kl` is filled in.
            ref_head_weight: the reference's head.
        """
        with self.autocast():
            hidden = self.hidden_states(microbatch)
            statistics = token_statistics(
                hidden, self.head_weight, microbatch.targets, anchor_ids, temperature=temperature
            )
            if ref_hidden is None or ref_head_weight is None:
                return statistics
            kl = full_kl(hidden, self.head_weight, ref_hidden, ref_head_weight, temperature=temperature)
        return replace(statistics, full_kl=kl)

    def objective_sum(
        self,
        microbatch: Microbatch,
        objective: Objective,
        anchor_ids: Int[Tensor, "tokens anchors"] | None = None,
        *,
        temperature: float = 1.0,
        ref_hidden: Float[Tensor, "tokens hidden"] | None = None,
        ref_head_weight: Float[Tensor, "vocab hidden"] | None = None,
    ) -> Float[Tensor, ""]:
        """Σ over the micro-batch's response tokens of an objective of their statistics, ready for its backward.

        Where it is cheaper the statistics come a few tokens at a time, and the gradient of the head is taken while
        their logits are still there.

        Args:
            microbatch: as in `forward`, and so the rest.
            objective: (statistics of some tokens, which of the micro-batch's) → one value a token.
            anchor_ids: the reference's top-K there.
            temperature: of the rollout.
            ref_hidden: the reference's hidden states there.
            ref_head_weight: the reference's head.
        """
        if ref_hidden is not None:
            statistics = self(
                microbatch, anchor_ids, temperature=temperature, ref_hidden=ref_hidden, ref_head_weight=ref_head_weight
            )
            return objective(statistics, slice(0, len(microbatch.rows))).sum()
        with self.autocast():
            hidden = self.hidden_states(microbatch)
            return objective_sum(
                hidden, self.head_weight, microbatch.targets, anchor_ids, objective, temperature=temperature
            )

    def as_reference(self, microbatch: Microbatch, anchor_size: int, *, temperature: float) -> ReferenceStatistics:
        """What a frozen policy says of the micro-batch's response tokens: log-probs and its own top K."""
        with self.autocast():
            hidden = self.hidden_states(microbatch)
            return reference_statistics(
                hidden, self.head_weight, microbatch.targets, anchor_size, temperature=temperature
            )

    def save_pretrained(self, folder: Path) -> None:
        """Write a Hugging Face folder that transformers and vLLM load; the first rank writes, all ranks must call.

        Adapters are merged into it.
        """
        weights = None
        is_first = True
        if torch.distributed.is_initialized():
            is_first = torch.distributed.get_rank() == 0
        if has_adapters(self.model):
            weights = merged_weights(self.model)
        elif torch.distributed.is_initialized():
            options = StateDictOptions(full_state_dict=True, cpu_offload=True)
            weights = get_model_state_dict(self.model, options=options)
        if is_first:
            self.model.save_pretrained(folder, state_dict=weights)
            self.tokenizer.save_pretrained(folder)

    def save_adapter(self, folder: Path) -> None:
        """Write the adapters alone, as PEFT loads them; the first rank writes, all ranks must call."""
        save_adapter(self.model, folder)

    def architecture_folder(self) -> tempfile.TemporaryDirectory[str]:
        """A folder with config and tokenizer but no weights: what an engine needs before its first sync."""
        folder = tempfile.TemporaryDirectory(prefix="apo-architecture-")
        self.model.config.save_pretrained(folder.name)
        self.tokenizer.save_pretrained(folder.name)
        return folder


def describe(model: PreTrainedModel, compute_dtype: torch.dtype, *, automatic: bool) -> str:
    """One line for the log.

    Example: `LlamaForCausalLM, 134.5M parameters in float32, computing in bfloat16 (native here)`; with adapters, and
    what `describe_adapters` says of them.
    """
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    dtype = str(compute_dtype).removeprefix("torch.")
    why = f" ({'native here' if compute_dtype == torch.bfloat16 else 'no native bfloat16 here'})" if automatic else ""
    parts = [f"{type(model).__name__}, {millions:.1f}M parameters in float32, computing in {dtype}{why}"]
    return ", ".join([*parts, *filter(None, [describe_adapters(model)])])
