"""A training run's own held-out problems, as measurements of the policy before and after it."""

from collections.abc import Iterator, Mapping
from typing import Any

from apo_lab.reporting.axes import plain
from apo_lab.reporting.identity import counted, short_hash
from apo_lab.reporting.names import BASE, model_name
from apo_lab.reporting.records import Measurement, RunCard
from apo_lab.reporting.runs import policy_of
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.records import Estimate, ProblemCount

STEPS = "steps"
"""The setting under which a run that ended before its last step is listed."""


def held_out_measurements(run: RunCard, departures: Mapping[str, str]) -> Iterator[Measurement]:
    """The untrained policy, where the run validated at step 0, and the trained one with its departures from defaults.

    Raises:
        ConfigError: a summary lacks what every summary has.
    """
    for name, change in run.summary.get("held_out", {}).items():
        try:
            yield from _before_and_after(run, departures, name, change)
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{run.folder}/summary.json: held_out.{name} lacks {error}: train again") from error


def _before_and_after(
    run: RunCard, departures: Mapping[str, str], name: str, change: Mapping[str, Any]
) -> Iterator[Measurement]:
    samples = (change["samples_per_problem_before"], change["samples_per_problem"])
    before, after = (
        tuple(
            ProblemCount(prompt_id=problem, num_samples=samples[place], num_correct=pair[place])
            for problem, pair in change["num_correct"].items()
        )
        for place in (0, 1)
    )
    if change["step_before"] == 0:
        # The policy before training is told from another by where it was read; random weights by the run's seed.
        path = run.config.get("model.path", "null")
        weights, seed = (f"of seed {run.seed}", run.seed) if path == "null" else (f"of {path}", "")
        yield _measured(run, name, before, method=BASE, weights=weights, seed=seed)
    last = str(change["step_after"])
    stopped = {} if run.config.get("trainer.max_steps", last) == last else {STEPS: last}
    pairs = zip(before, after, strict=True)
    gains = tuple(two.num_correct / two.num_samples - one.num_correct / one.num_samples for one, two in pairs)
    trained = {"method": run.label, "settings": {**departures, **stopped}, "weights": policy_of(run), "seed": run.seed}
    gain = Estimate(
        **{end: change["change"][key] for end, key in (("value", "mean"), ("low", "low"), ("high", "high"))}
    )
    yield _measured(run, name, after, gain=gain, by_problem={"gain": gains}, **trained)


def _measured(
    run: RunCard, name: str, problems: tuple[ProblemCount, ...], gain: Estimate | None = None, **policy: Any
) -> Measurement:
    curve, config = counted(problems), run.config
    ids = sorted(problem.prompt_id for problem in problems)
    found = {
        "temperature": plain(config["temperature"]) if "temperature" in config else None,
        "token limit": config.get("data.max_completion_tokens"),
        "problems": f"{len(ids)} ({short_hash(chr(10).join(ids))})",
    }
    return Measurement(
        model=model_name(run.model),
        sampling={name: value for name, value in found.items() if value is not None},
        benchmark=name,
        num_samples=len(curve),
        metrics={"pass@1": curve[0], f"pass@{len(curve)}": curve[-1]} | ({"gain": gain} if gain else {}),
        pass_at_k=curve,
        problems=problems,
        held_out=True,
        **policy,
    )
