"""The registration of an edition: one hash of its protocol, its decision code and its tasks; the commit of a run."""

import ast
import hashlib
import subprocess
from importlib import resources

from hydra.utils import instantiate

from apo_lab.editions.protocol import Protocol, World, protocol_text
from apo_lightning.run.choices import composed

DECISION_CODE = (
    "editions/tuning.py",
    "statistics/exact.py",
    "statistics/multiplicity.py",
    "statistics/paths.py",
    "statistics/seeds.py",
    "statistics/verdicts.py",
)
"""Modules that turn runs into verdicts, below the package."""
OF_ENDPOINT = {
    "passage": ("statistics/passage.py",),
    "entered": ("statistics/entrances.py", "statistics/at_passage.py"),
    "locked_share": ("statistics/entrances.py", "statistics/at_passage.py"),
}
"""Endpoint of a question → further modules: an edition that does not ask for it keeps its hash."""


def registration(protocol: Protocol) -> str:
    """The first 16 hex digits of a SHA-256 over protocol, decision code and tasks.

    Rows of runs carry it, and the page refuses rows of another. Comments, docstrings and formatting of the code do not
    change it; any other change does.
    """
    endpoints = {question.endpoint for question in protocol.questions}
    further = [path for name, paths in OF_ENDPOINT.items() if name in endpoints for path in paths]
    code = [*DECISION_CODE, *dict.fromkeys(further)]
    parts = [protocol_text(protocol.name), *map(_code, code)]
    parts += [f"{name} {task_sha256(world)}" for name, world in protocol.worlds.items()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def task_sha256(world: World) -> str:
    """Hash the training and held-out problems of a world, and the valid answers of the latter."""
    data = composed("train", [*world.run]).data
    source = instantiate(data)
    problems = source.load()
    lines = [row.problem for row in problems.train]
    for row in problems.validation[source.name]:
        lines += [row.problem, *(answer.text for answer in source.puzzle.answers(row.problem) if answer.is_valid)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def commit() -> str:
    """The commit of the clone that the package is in, with "+" where a file of it was changed; empty outside of one."""
    root = resources.files("apo_lab")
    found = _git("rev-parse", "HEAD", root=str(root))
    return found[:12] + ("+" if found and _git("status", "--porcelain", "--", ".", root=str(root)) else "")


def _git(*words: str, root: str) -> str:
    try:
        done = subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _code(path: str) -> str:
    """A module without comments, docstrings and formatting."""
    tree = ast.parse((resources.files("apo_lab") / path).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [line for line in node.body if not _is_text(line)] or [ast.Pass()]
    return ast.unparse(tree)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
