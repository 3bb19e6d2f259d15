"""The policy under evaluation: where its weights come from, and what its results say of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from transformers import PreTrainedTokenizerBase

from apo_lightning.console import progress_bars_hidden, say
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.records import ModelCard
from apo_lightning.model.fingerprint import weights_sha256
from apo_lightning.model.policy import Policy
from apo_lightning.model.spec import PolicySpec, describe
from apo_lightning.preflight.checks import check_devices, check_dtype
from apo_lightning.run.trained import TrainedRun, trained_run

OF_SAMPLES = (
    "seed", "temperature", "top_p", "num_samples", "limit", "max_completion_tokens", "samples_per_batch", "engine",
    "token_statistics", "support_anchor_size",
)  # fmt: skip
"""Settings that decide the samples of one policy on one benchmark."""


@dataclass(frozen=True, kw_only=True)
class EvaluatedPolicy:
    """The policy to be measured; no weights are loaded yet."""

    spec: PolicySpec
    run: TrainedRun | None
    """The training run that ended in this policy; None: a model as it was downloaded."""
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    """The kind of device; a launched process has one of its own."""
    world_size: int
    compute_dtype: torch.dtype
    output_dir: Path
    """The folder of the results, which exists."""
    seed: int

    @property
    def max_position_embeddings(self) -> int | None:
        """The longest sequence it reads; None: unknown."""
        return getattr(self.spec.load_config(), "max_position_embeddings", None)

    def load(self, device: torch.device) -> Policy:
        """Load the policy, frozen."""
        return self._load(self.spec, device)

    def load_reference(self, device: torch.device) -> Policy:
        """Load the policy that the training run began with, frozen."""
        assert self.run is not None
        return self._load(instantiate(self.run.reference, _convert_="all"), device)

    def card(self, policy: Policy) -> ModelCard:
        """The identity of the policy, as results carry it."""
        return ModelCard(
            name=self.spec.name,
            path=self.spec.path,
            weights_sha256=weights_sha256(policy),
            dtype=str(policy.compute_dtype).removeprefix("torch."),
            algo=self.run.algo if self.run else None,
            run=str(self.run.folder) if self.run else None,
            overrides=self.run.overrides if self.run else (),
            seed=self.run.seed if self.run else (self.seed if self.spec.path is None else None),
        )

    def _load(self, spec: PolicySpec, device: torch.device) -> Policy:
        with progress_bars_hidden():
            model = spec.load_model(self.seed)
        say(describe(model, self.compute_dtype, automatic=spec.compute_dtype == "auto"))
        policy = Policy(model, self.tokenizer, self.compute_dtype, spec.stop_tokens)
        return policy.to(device).eval().requires_grad_(False)


def find_evaluated_policy(cfg: DictConfig, overrides: Sequence[str], *, is_swept: bool = False) -> EvaluatedPolicy:
    """Read what the configuration says of the policy.

    Args:
        cfg: composed from `configs/evaluate.yaml`.
        overrides: as typed, to tell a model that was asked for from the default one.
        is_swept: others of the same sweep may measure this policy on the same benchmark, with other settings.

    Raises:
        ConfigError: there is no such run, model or device.
    """
    if cfg.support_anchor_size is not None and not cfg.run:
        raise ConfigError(
            f"support_anchor_size is {cfg.support_anchor_size}, but there is no reference without run=: name a "
            "training run, or leave it null"
        )
    run = trained_run(Path(cfg.run), overrides) if cfg.run else None
    spec: PolicySpec = instantiate(run.model if run else cfg.model, _convert_="all")
    device, world_size = check_devices(cfg.trainer.accelerator, cfg.trainer.devices, cfg.trainer.num_nodes)
    compute_dtype = spec.dtype(device)
    check_dtype(device, compute_dtype)
    default = run.folder / "evaluation" if run else Path("outputs") / "evaluate" / spec.name
    output_dir = Path(cfg.output_dir) if cfg.output_dir else default
    if is_swept:
        output_dir /= settings_folder(overrides)
    tokenizer = spec.load_tokenizer()
    output_dir.mkdir(parents=True, exist_ok=True)
    return EvaluatedPolicy(
        spec=spec,
        run=run,
        tokenizer=tokenizer,
        device=device,
        world_size=world_size,
        compute_dtype=compute_dtype,
        output_dir=output_dir,
        seed=cfg.seed,
    )


def settings_folder(overrides: Sequence[str]) -> str:
    """A name for what was typed of the settings that decide the samples; empty where nothing was.

    It does not depend on the order, so that the same sweep finds its folders again.

    Example:
        >>> settings_folder(["temperature=0.6", "model=tiny", "num_samples=4"])
        'num_samples=4,temperature=0.6'
    """
    return ",".join(sorted(override for override in overrides if override.partition("=")[0] in OF_SAMPLES))
