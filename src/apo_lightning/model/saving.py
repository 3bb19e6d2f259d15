"""What lets `save_pretrained` write a model that was loaded, found out before a run rather than at its end."""

import tempfile
from typing import Any

from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from apo_lightning.common.console import progress_bars_hidden
from apo_lightning.errors import ConfigError, in_brief


def try_saving(skeleton: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, where: str) -> None:
    """Write config, generation config and tokenizer to a temporary folder; raises `ConfigError` if that fails."""
    with tempfile.TemporaryDirectory() as folder, progress_bars_hidden():
        try:
            skeleton.save_pretrained(folder, state_dict={})
            tokenizer.save_pretrained(folder)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"{where}: its config, generation config or tokenizer cannot be written, as the export at the end of a "
                f"run needs ({in_brief(error)}): correct the file in the folder"
            ) from error


def mend_generation(model: PreTrainedModel) -> None:
    """Complete a generation config that `save_pretrained` would refuse, such as a temperature without `do_sample`.

    Only its stop tokens are read here. If it stays invalid, they are all that is kept.
    """
    generation = model.generation_config
    if generation is None or _is_savable(generation):
        return
    generation.do_sample = True  # without it, temperature and top_p are not read
    if not _is_savable(generation):
        names = ("bos_token_id", "eos_token_id")
        model.generation_config = GenerationConfig(**{name: getattr(generation, name) for name in names})


def _is_savable(generation: GenerationConfig) -> bool:
    try:
        generation.validate(strict=True)
    except ValueError:
        return False
    return True


def forget_quantization(model: Any) -> None:
    """Remove the marks of a GGUF file, dequantised on load, that make `save_pretrained` refuse the model."""
    for attribute in ("hf_quantizer", "quantization_method", "is_quantized"):
        vars(model).pop(attribute, None)
    for attribute in ("quantization_config", "_is_quantized"):
        vars(model.config).pop(attribute, None)
