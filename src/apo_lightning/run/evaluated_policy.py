"""The policy under evaluation: the source of its weights, and its identity in results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from omegaconf import DictConfig
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from apo_lightning.checkpoints.origin import identity_of_run, require_unchanged
from apo_lightning.checkpoints.run_state import policy_tensors
from apo_lightning.common.console import progress_bars_hidden, say
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.records import ModelCard
from apo_lightning.model.fingerprint import weights_sha256
from apo_lightning.model.lora import LoRA
from apo_lightning.model.policy import Policy
from apo_lightning.model.spec import PolicySpec, describe
from apo_lightning.run.devices import check_devices
from apo_lightning.run.recipe import Recipe
from apo_lightning.run.trained import FINAL, Stage, TrainedRun, stages_of

OF_SAMPLES = (
    "seed", "temperature", "top_p", "num_samples", "limit", "max_completion_tokens", "samples_per_batch", "engine",
    "token_statistics", "support_anchor_size",
)  # fmt: skip
"""Settings that determine the samples of one policy on one benchmark."""


@dataclass(frozen=True, kw_only=True)
class EvaluatedPolicy:
    """The policy under evaluation, before its weights are loaded."""

    spec: PolicySpec
    run: TrainedRun | None
    """The training run that produced the policy; None: a model that is not from a run."""
    stages: tuple[Stage, ...]
    """The stages of the run to measure, by step; a single stage without a step: the final weights."""
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    """The type of device; each launched process has its own device of this type."""
    world_size: int
    compute_dtype: torch.dtype
    output_dir: Path
    """The folder of the results, which exists."""
    seed: int

    def load(self, device: torch.device) -> tuple[Policy, str]:
        """Load the policy, frozen, with matrices in the compute dtype; and the SHA-256 of its unrounded weights."""
        policy = self._load(self.spec, self.seed)
        # Reports identify a policy by this hash, which for rounded weights would differ from the run's.
        sha256 = weights_sha256(policy)
        return self._frozen(policy, device), sha256

    def load_stages(self, device: torch.device) -> tuple[Policy, Mapping[str, Tensor]]:
        """Load the policy as it was before training, frozen, and its trained weights, which are overwritten in place.

        All weights stay float32, so that the SHA-256 of each stage is that of its snapshot.
        """
        assert self.run is not None
        policy = self._load(self.run.recipe.model, self.run.seed, self.run.recipe.lora).to(device)
        # Before freezing: `policy_tensors` selects parameters that require gradients.
        weights = policy_tensors(policy)
        return policy.requires_grad_(False), weights

    def load_reference(self, device: torch.device) -> Policy:
        """Load the model that training began with, frozen, with matrices in the compute dtype."""
        assert self.run is not None
        require_unchanged(f"run={self.run.folder}", identity_of_run(self.run.folder), self.run.base_identity())
        return self._frozen(self._load(self.run.recipe.model, self.run.seed), device)

    def card(self, weights_sha256: str, stage: Stage) -> ModelCard:
        """The identity of the policy at a stage, for its results."""
        trained = self.run if stage.step is None or stage.snapshot is not None else None
        seed = self.seed if self.run is None else self.run.seed
        return ModelCard(
            name=self.spec.name,
            path=str(stage.snapshot.folder) if stage.snapshot is not None else self.spec.path,
            weights_sha256=weights_sha256,
            dtype=str(self.compute_dtype).removeprefix("torch."),
            step=stage.step,
            algo=trained.algo if trained else None,
            run=str(self.run.folder) if self.run else None,
            overrides=trained.overrides if trained else (),
            # The seed of training, or of random weights.
            seed=seed if trained or self.spec.path is None else None,
        )

    def _load(self, spec: PolicySpec, seed: int, lora: LoRA | None = None) -> Policy:
        with progress_bars_hidden():
            model = spec.load_model(seed)
        if lora is not None:
            lora.attach(model, seed)
        say(describe(model, self.compute_dtype, automatic=spec.compute_dtype == "auto"))
        return Policy(model, self.tokenizer, self.compute_dtype, spec.stop_tokens).eval()

    def _frozen(self, policy: Policy, device: torch.device) -> Policy:
        policy.round_matrices()
        return policy.to(device).requires_grad_(False)


def find_evaluated_policy(cfg: DictConfig, overrides: Sequence[str], *, is_swept: bool = False) -> EvaluatedPolicy:
    """Read the policy from the configuration; raises `ConfigError` if there is no such run, model or device.

    `cfg` has `run`, `model`, `trainer`, `output_dir` and `seed`, and optionally `checkpoint` and `support_anchor_size`.
    `overrides` are as typed; in a sweep those that determine the samples name a folder (`settings_folder`).
    """
    if cfg.run == "":  # of a shell whose variable is empty: the base model would be measured in its place
        raise ConfigError("run= is empty: name a training run, or leave it out to measure a model")
    checkpoint = cfg.get("checkpoint", FINAL)
    for name, value, default in (
        ("support_anchor_size", cfg.get("support_anchor_size"), None),
        ("checkpoint", checkpoint, FINAL),
    ):
        if value != default and cfg.run is None:
            raise ConfigError(f"{name} is {value}, but there is no run=: name a training run, or leave it out")
    if cfg.run is not None and any(override.lstrip("+~").startswith("model") for override in overrides):
        raise ConfigError("run= brings its own model config: leave model=… out, or give model.path=… without run=")
    run = TrainedRun.read(Path(str(cfg.run))) if cfg.run is not None else None
    stages = stages_of(run.folder if run else None, checkpoint)
    spec = Recipe(cfg).model if run is None else run.final_model if checkpoint == FINAL else run.recipe.model
    device, world_size = check_devices(cfg.trainer)
    dtype = spec.supported_dtype(device)
    default = run.folder / "evaluation" if run and not run.is_published else Path("outputs") / "evaluate" / spec.name
    output_dir = Path(cfg.output_dir) if cfg.output_dir else default
    if is_swept:
        output_dir /= settings_folder(overrides)
    tokenizer = spec.load_tokenizer()
    spec.check_weights()
    if run is not None and checkpoint != FINAL:
        here, of_run = spec.identity(tokenizer), identity_of_run(run.folder)
        for of_stage in (stage.snapshot.header.identity if stage.snapshot else of_run for stage in stages):
            require_unchanged(f"run={run.folder}", of_stage, here)
    output_dir.mkdir(parents=True, exist_ok=True)
    return EvaluatedPolicy(
        spec=spec,
        run=run,
        stages=stages,
        tokenizer=tokenizer,
        device=device,
        world_size=world_size,
        compute_dtype=dtype,
        output_dir=output_dir,
        seed=cfg.seed,
    )


def settings_folder(overrides: Sequence[str]) -> str:
    """Folder name made of the typed settings that determine the samples; empty if there are none.

    It does not depend on their order, so that a repeated sweep finds its folders.

    Example:
        >>> settings_folder(["temperature=0.6", "model=tiny", "num_samples=4"])
        'num_samples=4,temperature=0.6'
    """
    return ",".join(sorted(override for override in overrides if override.partition("=")[0] in OF_SAMPLES))
