"""Checks of a generation request before any engine sees it."""

from apo_lightning.errors import ConfigError
from apo_lightning.types import GenerationRequest

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 2.0  # vLLM silently raises smaller values to 0.01 and refuses larger ones


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
