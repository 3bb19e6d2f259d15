"""A whole step of every algorithm on a card whose numbers a CPU has, for `make gpu` where there is no GPU.

Reference, log-probs, two mini-batches, metrics: that no tensor is on the wrong device, that the weights become what
they become on a CPU, and how often the host waits for the card.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks import CONFIGS
from benchmarks.emulated import cardless
from benchmarks.gpu.rows import Row, attempt, judged

LARGEST_ERROR = {"float32": 3e-4, "bfloat16": 5e-2}
LEARNING_RATE = 0.1


def step_rows(device: str) -> Iterator[Row]:
    cardless.pretend()
    for path in sorted((CONFIGS / "algo").glob("*.yaml")):
        yield from attempt(path.stem, algorithm_rows(path.stem, "float32"))
    yield from attempt("apo", algorithm_rows("apo", "bfloat16"))


def algorithm_rows(name: str, dtype: str) -> Iterator[Row]:
    import torch
    from hydra import compose, initialize_config_dir
    from hydra.utils import instantiate

    from apo_lightning.model.reference import Reference
    from benchmarks.emulated.tensors import emulation, move_to_card, waits
    from benchmarks.performance.head import relative_error
    from benchmarks.performance.update import Shape, build_module, make_rollouts
    from benchmarks.shared.models import TINY, config_of, random_model

    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        algorithm = compose("train", overrides=[f"algo={name}", "model=tiny"]).algo
    model = random_model(config_of(TINY), torch.device("cpu")).train()
    rollouts = make_rollouts(Shape(6, 3, 9), TINY["vocab_size"], num_groups=4, group_size=4)
    modules = []
    for one in (model, copy.deepcopy(model)):
        module = build_module(one, rollouts, getattr(torch, dtype if one is not model else "float32"))
        module.loss = instantiate(algorithm.loss)
        module.reference = Reference(module.policy)
        modules.append(module)
    on_cpu, on_card = modules
    before = [parameter.detach().clone() for parameter in model.parameters()]
    exact = run_step(on_cpu, rollouts)
    move_to_card(on_card.policy)
    move_to_card(on_card.reference.policy)
    on_card._device = next(on_card.policy.parameters()).device
    waits.clear()
    with emulation():
        found = run_step(on_card, rollouts)
    errors = [
        relative_error(one.numbers - start, two - start)
        for one, two, start in zip(found, exact, before, strict=True)
        if not torch.equal(two, start)
    ]
    said = f"{max(errors):.1e}; the host waits {waits.total()} times"
    name = f"step of {name}, {dtype}: largest error of a weight's change"
    yield judged(name, max(errors), said, at_most=LARGEST_ERROR[dtype], waits=dict(waits))


def run_step(module: Any, rollouts: Any) -> list[Any]:
    """The weights after a step of two mini-batches; its metrics are computed too."""
    import torch

    from apo_lightning.step.update import minibatch_gradient
    from apo_lightning.step.scoring import score_policy, score_reference
    from apo_lightning.step.step_metrics import step_metrics
    from apo_lightning.step.step_plan import plan_step, step_table
    from apo_lightning.step.update_record import UpdateRecord
    from benchmarks.performance.update import estimate

    module.settings = replace(module.settings, prompts_per_minibatch=len(rollouts.prompts) // 2, gradient_clip_norm=1.0)
    optimizer = torch.optim.SGD(module.policy.parameters(), lr=LEARNING_RATE)
    plan = plan_step(module, step_table(module, rollouts, estimate(rollouts)))
    score_reference(module, plan)
    score_policy(module, plan)
    record = UpdateRecord.of(plan.table, module.loss)
    for minibatch in plan.minibatches:
        gradient = minibatch_gradient(module, plan, minibatch)
        record.add(minibatch, gradient)
        record.count_step(minibatch, gradient)
        optimizer.step()
        optimizer.zero_grad()
    record.close(plan.table, module.ranks)
    step_metrics(rollouts, plan.table.freeze(), record, module.ranks)
    return [parameter.detach() for parameter in module.policy.parameters()]


SECTIONS = {"steps": step_rows}
