"""The axes are orthogonal: whatever two options are named together, a run composes."""

import functools
import itertools
import re

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import OmegaConf

from apo_lightning.run.launching import register_resolvers
from apo_lightning.run.settings import ANNOTATIONS, check_values
from apo_lightning.types import AdvantageInputs
from composing import CONFIGS, PAPER, ROOT, composed, names
from loss_cases import ALGORITHMS, algorithm

PAGE = (ROOT / "docs" / "commands.md").read_text()
AXES = {
    axis: re.findall("`(\\w+)`", options)
    for axis, options in re.findall(r"^\| `(\w+)=` \| (.*?) \|", PAGE, flags=re.MULTILINE)
    if axis != "experiment"
}
"""The axes of the table in docs/commands.md and their options."""


def can_run(choice):
    """`reward=puzzle` and `callbacks=lab` take the puzzle that `data=` names."""
    takes_puzzle = choice.get("reward") == "puzzle" or choice.get("callbacks") == "lab"
    return not takes_puzzle or choice.get("data", "locks") in ("locks", "countdown", "divisors")


def pairwise(axes):
    """Choices of an option an axis, in which every two options of two axes are together at least once."""
    options = [(axis, option) for axis in axes for option in axes[axis]]
    pairs = (set(pair) for pair in itertools.combinations(options, 2))
    left = {frozenset(pair) for pair in pairs if len(dict(pair)) == 2 and can_run(dict(pair))}
    while left:
        choice = dict(min(left, key=sorted))
        for axis in (axis for axis in axes if axis not in choice):
            choices = [choice | {axis: option} for option in axes[axis]]
            choice = max(filter(can_run, choices), key=lambda choice: len(left & pairs_of(choice)))
        left -= pairs_of(choice)
        yield choice


def pairs_of(choice):
    return set(map(frozenset, itertools.combinations(choice.items(), 2)))


def test_the_page_of_commands_names_every_option():
    groups = {path.name for path in CONFIGS.iterdir() if path.is_dir()}
    assert set(AXES) == groups - {"experiment", "base", "benchmark", "coverage", "pretraining"}
    assert set(AXES["callbacks"]) < set(names("callbacks"))  # whose other files are single callbacks
    for axis in set(AXES) - {"callbacks"}:
        assert sorted(AXES[axis]) == names(axis)


CHOICES = list(pairwise(AXES))


@pytest.mark.parametrize("algo", names("algo"))
def test_any_two_options_of_two_axes_compose(algo, monkeypatch):
    register_resolvers()  # this and the next line as a program's entry does
    hydra = {"runtime": {"output_dir": "/run"}, "job": {"override_dirname": f"algo={algo}"}, "mode": RunMode.RUN}
    monkeypatch.setattr(HydraConfig.instance(), "cfg", OmegaConf.create({"hydra": hydra}))
    function = {"callable": ["reward.function._target_=rewarding.even_start"]}  # which has no default
    choices = [choice for choice in CHOICES if choice["algo"] == algo]
    assert {choice["model"] for choice in choices} == set(names("model"))
    for choice in choices:
        options = [f"{axis}={option}" for axis, option in choice.items()]
        cfg = composed(*options, *function.get(choice["reward"], []))
        found = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
        assert found["model"]["name"] == choice["model"]
        check_values(cfg, ANNOTATIONS)


def update_sizes(*overrides):
    cfg = composed(*overrides)
    return cfg.tokens_per_microbatch, cfg.model.compile_layers, cfg.model.gradient_checkpointing


@pytest.mark.parametrize(
    ("trainer", "model", "sizes"),
    [
        ("gpu", "smollm2_135m", (16384, True, False)),
        ("gpu", "qwen7b", (16384, True, True)),
        *((trainer, "llama3b", (16384, True, False)) for trainer in ("fsdp8", "fsdp8x2")),
        *((trainer, "qwen7b", (6144, True, False)) for trainer in ("fsdp8", "fsdp8x2")),
        ("fsdp8", "qwen_math7b", (6144, True, False)),
        *((trainer, "qwen7b", (2048, False, True)) for trainer in ("cpu", "default", "ddp_cpu2", "fsdp_cpu2")),
    ],
)
def test_gpus_bring_their_sizes_of_the_update_by_model_and_cpus_none(trainer, model, sizes):
    assert update_sizes(f"trainer={trainer}", f"model={model}") == sizes


def test_a_typed_size_of_the_update_and_an_experiments_win_over_the_trainers():
    typed = ("tokens_per_microbatch=77", "model.compile_layers=false", "model.gradient_checkpointing=true")
    assert update_sizes("trainer=fsdp8", "model=llama3b", *typed) == (77, False, True)
    # The paper's runs choose a trainer and a model, and get what belongs to the two.
    assert update_sizes("experiment=paper/qwen7b_apo") == (6144, True, False)
    assert update_sizes("experiment=paper/llama3b_apo", "trainer=cpu") == (2048, False, True)


@pytest.mark.parametrize("program", ["evaluate", "pretrain"])
def test_programs_that_update_nothing_so_take_the_devices_alone(program):
    plain = composed(config_name=program)
    of_gpus = composed("trainer=fsdp8", config_name=program)
    assert {**of_gpus, "trainer": None} == {**plain, "trainer": None}


@pytest.mark.parametrize("program", ["train", "evaluate"])
@pytest.mark.parametrize("key", ["kv_cache_gib", "gpu_memory_utilization"])
def test_the_engines_memory_is_typed_alike_under_every_engine(program, key):
    for option in names("engine"):
        engine = composed(f"engine={option}", f"{key}=0.25", config_name=program).engine
        found = [node[key] for node in (engine, engine.get("vllm", {})) if key in node]
        assert found == ([] if option == "transformers" else [0.25])


def test_the_papers_runs_look_at_the_benchmarks_that_its_evaluations_measure():
    cfg = composed("experiment=paper/qwen_math7b_apo")
    benchmarks = composed("benchmark=paper", config_name="evaluate").benchmark
    held_out = instantiate(cfg.data).validation
    assert list(held_out) == ["aime2024", "aime2025", "amc2023"]
    for name, problems in held_out.items():
        assert problems.hub == instantiate(benchmarks[name].hub)
    # The cost that the file states, of completions: a look in those of a step, all looks in those of the run.
    looks = 1 + cfg.trainer.max_steps // cfg.trainer.val_check_interval
    share = sum(benchmarks[name].num_problems for name in held_out) * cfg.validation_samples / (512 * 8)
    assert (looks, round(share, 2), round(looks * share / cfg.trainer.max_steps, 2)) == (13, 0.20, 0.01)


@pytest.mark.parametrize("run", sorted(PAPER))
def test_a_paper_run_has_the_papers_hyper_parameters_and_a_clean_one_leaves_out_the_benchmarks_problems(run):
    cfg = composed(f"experiment=paper/{run}")
    assert (cfg.prompts_per_step, cfg.prompts_per_minibatch, cfg.group_size) == (512, 32, 8)
    assert (cfg.data.max_prompt_tokens, cfg.data.max_completion_tokens) == (512, 1536)
    assert (cfg.optimizer.lr, cfg.optimizer.weight_decay, cfg.gradient_clip_norm) == (1e-6, 0.1, 1.0)
    assert (cfg.scheduler.name, cfg.temperature, cfg.aggregation) == ("constant", 1.0, "token_mean")
    assert cfg.trainer.max_steps == 240
    loss = cfg.algo.loss
    instantiate(loss)
    assert (loss.clip_eps, loss.clip_eps_high, loss.dual_clip, loss.entropy_coef) == (0.2, None, 3.0, 0.0)
    if "kl_coef" in loss:
        assert loss.kl_coef == 0.01
    if "push_coef" in loss:
        default = {"pull_coef": 0.1, "push_coef": 1.05, "anchor_size": 8}
        if run.startswith("sensitivity_"):
            _, key, value = run.split("_")
            default[{"pull": "pull_coef", "push": "push_coef", "anchor": "anchor_size"}[key]] = float(value)
        assert {key: loss[key] for key in default} == default

    clean = composed(f"experiment=clean/{run}")
    assert [problems.hub for problems in instantiate(clean.data).exclude] == hubs_of_the_papers_benchmarks()
    clean.data.exclude = []
    assert clean == cfg


@functools.cache
def hubs_of_the_papers_benchmarks():
    return [instantiate(node.hub) for node in composed("benchmark=paper", config_name="evaluate").benchmark.values()]


def test_an_algorithm_brings_its_own_aggregation_which_the_command_line_overrules_and_an_experiment_does_not():
    own = {"dr_grpo": "sequence_mean_token_sum_norm"} | dict.fromkeys(("gspo", "gmpo"), "sequence_mean_token_mean")
    for algo in names("algo"):
        assert composed(f"algo={algo}").aggregation == own.get(algo, "token_mean"), algo
    assert composed("experiment=paper/llama3b_grpo", "algo=dr_grpo").aggregation == "sequence_mean_token_sum_norm"
    for key in ("aggregation", "algo.aggregation"):
        assert composed("algo=dr_grpo", f"{key}=token_mean").aggregation == "token_mean"


def test_the_trigger_looks_at_the_verdict_only_where_a_correct_answer_can_have_a_negative_advantage():
    groups = torch.tensor(list(itertools.product([0.0, 1.0], repeat=6)))
    inputs = AdvantageInputs(rewards=groups, is_correct=groups > 0, lengths=torch.ones_like(groups, dtype=torch.long))
    for name in ALGORITHMS:
        node = algorithm(name)
        if "trigger" in node.loss:
            values = instantiate(node.advantage)(inputs).values
            can_be_negative = bool((values[groups > 0] < 0).any())
            assert (node.loss.trigger == "incorrect") is can_be_negative, name


def test_a_changed_file_is_parsed_anew(tmp_path):
    """`parsed_once` keeps what Hydra has read."""
    for value in (1, 22):
        (tmp_path / "own.yaml").write_text(f"value: {value}")
        with initialize_config_dir(str(tmp_path), version_base="1.3"):
            for _ in range(2):
                assert compose("own", overrides=["+other=0"]) == {"value": value, "other": 0}
