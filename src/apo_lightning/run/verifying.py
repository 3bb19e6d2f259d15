"""`apo verify`: what a run, or a published folder, says of itself is made again and compared."""

import contextlib
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from omegaconf import DictConfig

from apo_lightning.common.checks import Check, check, check_table, require_none_differs
from apo_lightning.common.console import quiet_libraries, show
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.samples_file import IDENTITY
from apo_lightning.run import verified_evaluation, verified_run
from apo_lightning.run.verified_evaluation import Evaluation
from apo_lightning.run.verified_run import Subject
from apo_lightning.run.verified_training import training

OF_RUN: dict[str, Callable[[Subject], str]] = {
    "files": verified_run.files,
    "settings": verified_run.settings,
    "model, data and code": verified_run.contents,
    "packages": verified_run.packages,
    "weights": verified_run.weights,
    "metrics.csv": verified_run.metrics,
    "summary.json": verified_run.summary,
    "rollouts": verified_run.verdicts,
    "training": training,
}
OF_EVALUATION: dict[str, Callable[[Evaluation], str]] = {
    "sampling": verified_evaluation.sampling,
    "verdicts": verified_evaluation.verdicts,
    "results": verified_evaluation.results,
    "policy": verified_evaluation.policy,
}


def main(cfg: DictConfig) -> None:
    """The command; raises `ConfigError` if anything differs."""
    found = verify(cfg)
    show(check_table(found))
    require_none_differs(found)


def verify(cfg: DictConfig) -> list[Check]:
    """All checks of a run and of its evaluations; nothing is written into its folder.

    Raises:
        ConfigError: the folder is no run, or has no evaluation of the name.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as held:
        scratch = Path(folder)
        quiet_libraries(scratch / "verify.log")
        subject = Subject(cfg, scratch)
        root = subject.run.folder / "evaluation"
        names = {str(path.parent.relative_to(root)): path.parent for path in sorted(root.rglob(IDENTITY))}
        if cfg.evaluation is not None and cfg.evaluation not in names:
            raise ConfigError(f"evaluation={cfg.evaluation}: the run has {', '.join(names) or 'none'}")
        held.enter_context(contextlib.redirect_stdout(held.enter_context((scratch / "output.txt").open("w"))))
        found = [check(name, partial(compare, subject)) for name, compare in OF_RUN.items()]
        for name in names if cfg.evaluation is None else [cfg.evaluation]:
            evaluation = cache(partial(Evaluation, subject, names[name]))
            for what, compare in OF_EVALUATION.items():
                found.append(check(f"{name}: {what}", lambda compare=compare, read=evaluation: compare(read())))
        if "recipe" in vars(subject):
            subject.recipe.close()
        return found
