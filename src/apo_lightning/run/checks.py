"""What cannot work in a run, before any weights are loaded: one check after another, each raises `ConfigError`."""

from collections.abc import Callable, Mapping, Sequence

from omegaconf import DictConfig

from apo_lightning.advantages.trial import try_advantage
from apo_lightning.contracts import check_group_size
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.benchmark import Benchmark
from apo_lightning.losses.trial import try_loss
from apo_lightning.model.architecture import check_length, exact_length
from apo_lightning.model.spec import PolicySpec
from apo_lightning.parts.order import OF_ALGO, check_values_given
from apo_lightning.run.choices import interpolates
from apo_lightning.run.devices import check_devices
from apo_lightning.run.lightning_options import check_callback, check_monitors, check_trainer
from apo_lightning.run.recipe import Recipe
from apo_lightning.step.part import check_parts
from apo_lightning.step.settings import StepSettings, try_schedule

SECTIONS = {"algo": ("loss", "advantage", "aggregation", *OF_ALGO, "parts"), "policy": ("lora",)}
"""Keys of the sections that are no `_target_`, which would refuse others."""


def prepare(cfg: DictConfig) -> Recipe:
    """What a run is made of, checked; raises `ConfigError` for the first thing that cannot work."""
    recipe = Recipe(cfg)
    for check in CHECKS:
        check(recipe)
    return recipe


def _sections(recipe: Recipe) -> None:
    for section, known in SECTIONS.items():
        for key in map(str, recipe.cfg[section]):
            if key not in known and not interpolates(recipe.cfg, f"{section}.{key}"):
                raise ConfigError(f"{section}.{key}: nothing reads it; {section} has {', '.join(known)}")


def _horizon(recipe: Recipe) -> None:
    if recipe.horizon < recipe.max_steps:
        raise ConfigError(
            f"schedule_horizon is {recipe.horizon} and trainer.max_steps {recipe.max_steps}: the schedule would end "
            f"before the run; give at least {recipe.max_steps}, or null"
        )
    try_schedule(recipe.optimizer, recipe.scheduler, recipe.horizon * recipe.settings.minibatches_per_step)


def _algorithm(recipe: Recipe) -> None:
    check_group_size(recipe.advantage, recipe.settings.group_size)
    parts = [part for key, part in recipe.options.items() if key.startswith("algo.parts.")]
    check_parts(recipe.loss.needs, parts, loss=type(recipe.loss).__name__)
    check_values_given(recipe)


def _itself(name: str) -> Callable[[Recipe], None]:
    """A piece of the recipe, or each of several, says where it has no use, or cannot work with the others."""

    def check(recipe: Recipe) -> None:
        found = getattr(recipe, name)
        for piece in found.values() if isinstance(found, Mapping) else [found]:
            getattr(piece, "check", lambda recipe: None)(recipe)

    return check


def _callbacks(recipe: Recipe) -> None:
    for name, callback in recipe.callbacks.items():
        check_callback(name, callback, recipe.cfg.callbacks[name])


def _ranks(recipe: Recipe) -> None:
    """Ranks share a mini-batch evenly, and hold one shard each."""
    per_minibatch, world_size = recipe.settings.prompts_per_minibatch, recipe.world_size
    if per_minibatch % world_size:
        raise ConfigError(
            f"prompts_per_minibatch is {per_minibatch} and cannot be shared evenly by {world_size} processes: give a "
            f"multiple of {world_size}"
        )
    strategy = recipe.cfg.trainer.strategy
    shards = strategy.get("data_parallel_size", world_size) if isinstance(strategy, DictConfig) else world_size
    if shards != world_size:
        raise ConfigError(
            f"trainer.strategy.data_parallel_size is {shards}, but trainer.devices × trainer.num_nodes is "
            f"{world_size}: a process holds one shard, so make them equal"
        )


def _model(recipe: Recipe) -> None:
    model, tokenizer, config = recipe.model, recipe.tokenizer, recipe.architecture
    key, otherwise = "data.max_completion_tokens", "lower data.max_prompt_tokens"
    check_fits(recipe.settings, model, key=key, otherwise=otherwise)
    if (anchor_size := recipe.needs.anchor_size) >= config.vocab_size:
        raise ConfigError(
            f"anchor_size is {anchor_size} and the vocabulary of {model.name} has {config.vocab_size} tokens: give an "
            "anchor_size below that"
        )
    recipe.engine.check_model(config, recipe.requested[0])
    if recipe.lora is not None:
        recipe.lora.check(config)
    model.check_weights()
    model.check_export(tokenizer)


def check_fits(sizes: StepSettings | Benchmark, spec: PolicySpec, where: str = "", *, key: str, otherwise: str) -> None:
    """Raise `ConfigError` if a model cannot read the longest prompt and completion of `sizes` together.

    Args:
        sizes: of a run, or of a benchmark.
        spec: the model.
        where: the beginning of the message.
        key: the setting of the longest completion.
        otherwise: what to do where the prompt alone is too long.
    """
    config, length = spec.load_config(), sizes.max_model_len
    longest = getattr(config, "max_position_embeddings", None)
    left = min(longest or length, exact_length(config) or length) - sizes.max_prompt_tokens
    remedy = f"give {key}={left} or less" if left > 0 else otherwise
    if longest is not None and length > longest:
        raise ConfigError(
            f"{where}max_prompt_tokens {sizes.max_prompt_tokens} + max_completion_tokens "
            f"{sizes.max_completion_tokens} = {length} does not fit {spec.name}, which reads {longest} tokens: {remedy}"
        )
    check_length(config, length, remedy)


def check_data(recipe: Recipe) -> None:
    """Read the problems, try the reward on the first, and the estimator on its verdicts."""
    try_advantage(recipe.advantage, recipe.reward, recipe.tried, recipe.settings.group_size)


CHECKS: Sequence[Callable[[Recipe], object]] = (
    _sections,
    lambda recipe: check_trainer(recipe.cfg.trainer, recipe.cfg),
    lambda recipe: recipe.settings,
    _algorithm,
    lambda recipe: try_loss(recipe.loss),
    lambda recipe: (recipe.optimizer, recipe.scheduler),
    _horizon,
    _callbacks,
    lambda recipe: check_devices(recipe.cfg.trainer),
    _ranks,
    lambda recipe: recipe.compute_dtype,
    lambda recipe: recipe.engine.check(recipe.requested[0]),
    lambda recipe: recipe.source.check(),
    _model,
    lambda recipe: recipe.described,
    *map(_itself, ("loss", "reward", "options", "callbacks", "checkpoint")),
    check_data,
    lambda recipe: check_monitors(recipe.callbacks.values(), recipe.cfg.trainer, recipe.data.validation_names),
    lambda recipe: recipe.identity,
)
"""The cheapest first."""
