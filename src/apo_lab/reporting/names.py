"""The printed names of methods, models, benchmarks and settings, and their order; others follow under their own."""

import re
from collections.abc import Iterable, Mapping

BASE = "Base"
"""The method name of a model as it was downloaded."""

METHODS: Mapping[str, str] = {
    "base": BASE,
    "grpo": "GRPO",
    "nsr": "NSR",
    "psr": "PSR",
    "w_reinforce": "W-REINFORCE",
    "rloo": "RLOO",
    "dr_grpo": "Dr. GRPO",
    "pass_at_k": "Pass@k training",
    "grpo_kl": "GRPO-KL",
    "grpo_kl_error_only": "GRPO-KL (error-only)",
    "apo_naive": "APO (naive anchor)",
    "apo_pass_at_k": "APO on Pass@k",
    "push_only": "APO, β = 0",
    "clip_higher": "GRPO, clip-higher",
    "entropy_bonus": "GRPO, entropy bonus",
    "apo_k2": "APO, K = 2",
    "apo_k4": "APO, K = 4",
    "apo_k12": "APO, K = 12",
    "grpo_topk_forward_kl": "GRPO, forward KL on T_K",
    "apo_gate_only": "APO, gate only",
    "apo_ungated": "APO, ungated",
    "apo_log_mass": "APO, log-mass pull",
    "apo_cross_entropy": "APO, cross-entropy pull",
    "apo_random_anchors": "APO, random anchors",
    "apo_always": "APO, pull everywhere",
    "apo": "APO",
}
"""Stem of `algo=`, or method of the laboratory → name, in the order of the paper's main table: APO stands last."""

MODELS: Mapping[str, str] = {
    "qwen7b": "Qwen2.5-7B",
    "qwen_math7b": "Qwen2.5-Math-7B",
    "llama3b": "Llama-3.2-3B-Instruct",
    "smollm2_135m": "SmolLM2-135M-Instruct",
    "tiny": "tiny",
}
BENCHMARKS: Mapping[str, str] = {
    "aime2024": "AIME 24",
    "aime2025": "AIME 25",
    "amc2023": "AMC 23",
    "math500": "MATH-500",
    "minerva_math": "Minerva",
}
AXES: Mapping[str, str] = {
    "algo.loss.pull_coef": "β",
    "algo.loss.push_coef": "λ",
    "algo.loss.anchor_size": "K",
    "algo.loss.kl_coef": "KL coefficient",
    "algo.loss.clip_eps": "ε",
    "optimizer.lr": "learning rate",
}


def method_name(algo: str) -> str:
    """The printed name of an `algo=` stem: `grpo_kl` → `GRPO-KL`."""
    return METHODS.get(algo, algo)


def algo_of(method: str) -> str:
    """The `algo=` stem of a printed method name: `GRPO-KL` → `grpo_kl`."""
    return next((algo for algo, name in METHODS.items() if name == method), method)


def model_name(model: str) -> str:
    """The printed name of a model config: `qwen_math7b` → `Qwen2.5-Math-7B`."""
    return MODELS.get(model, model)


def benchmark_name(benchmark: str) -> str:
    """The printed name of a benchmark config: `aime2024` → `AIME 24`."""
    return BENCHMARKS.get(benchmark, benchmark)


def axis_name(key: str) -> str:
    """The printed name of a setting: the paper's symbol, else the last part of its key.

    Example:
        >>> axis_name("algo.loss.pull_coef"), axis_name("data.max_operand")
        ('β', 'max_operand')
    """
    return AXES.get(key, key.rpartition(".")[2])


def slug(name: str) -> str:
    """A printed name as part of a file name.

    Example:
        >>> slug("GRPO-KL (error-only)")
        'grpo_kl_error_only'
    """
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def axis_place(key: str) -> tuple[int, str]:
    """Sort key of settings: the paper's in its order, then others by name."""
    return _place(key, list(AXES))


def in_method_order(methods: Iterable[str]) -> list[str]:
    """Printed method names in the paper's order, then unknown ones by name.

    Example:
        >>> in_method_order(["mine", "APO", "NSR", "Base"])
        ['Base', 'NSR', 'APO', 'mine']
    """
    return sorted(set(methods), key=lambda name: _place(name, list(METHODS.values())))


def in_model_order(models: Iterable[str]) -> list[str]:
    """Printed model names in the paper's order, then unknown ones by name."""
    return sorted(set(models), key=lambda name: _place(name, list(MODELS.values())))


def in_benchmark_order(benchmarks: Iterable[str]) -> list[str]:
    """Benchmark stems in the paper's order, then unknown ones by name."""
    return sorted(set(benchmarks), key=lambda name: _place(name, list(BENCHMARKS)))


def _place(name: str, known: list[str]) -> tuple[int, str]:
    return (known.index(name) if name in known else len(known), name)
