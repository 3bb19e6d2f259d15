"""How large the project is, and how much of it a reader of one training step meets: one Markdown table.

    python -m benchmarks.size [--root CHECKOUT] [--files] [--static]

Lines are those of Python files that git tracks; imports, names and classes are read from the syntax trees. For the
last row one step of `model=tiny` is run, and the files of the framework in which a function is called are counted;
`--files` lists them, `--static` leaves the step out. `--root` measures another checkout, such as an older one.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
FRAMEWORK = "src/apo_lightning"
PACKAGES = (
    FRAMEWORK, "src/apo_plan", "src/math_answers", "src/apo_methods", "src/apo_report", "src/apo_lab", "src", "tests",
)  # fmt: skip
OPTIONS = {
    "critic": "critic",
    "dynamic sampling": "dynamic.?sampling",
    "averaging": "averag(e|ing)",
    "moving reference": "after_step|after_optimizer_step",
    "probes": "prob(e|es|ing)(?!a)",
    "importance": "importance",
}
"""Options of a step, and how their names are found in a line."""
STEP = (
    "model=tiny", "engine=transformers", "algo=apo", "callbacks=none", "data.max_operand=20", "data.num_validation=4",
    "prompts_per_step=4", "prompts_per_minibatch=2", "group_size=4", "trainer.max_steps=1",
    "trainer.val_check_interval=null",
    # A random model gets no sum right; this it gets half right.
    "reward=callable", "reward.function._target_=benchmarks.shared.runs.even_start",
)  # fmt: skip
"""The run whose step is traced: two mini-batches of two prompts with four completions each."""


def tracked(root: Path, folder: str) -> list[Path]:
    """The files below a folder that git tracks, without links."""
    listed = subprocess.run(["git", "ls-files", "-z", folder], cwd=root, capture_output=True, text=True, check=True)
    paths = (root / name for name in listed.stdout.split("\0") if name)
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def python_lines(root: Path, folder: str) -> int:
    """Lines of all Python files below a folder."""
    return sum(len(path.read_text().splitlines()) for path in tracked(root, folder) if path.suffix == ".py")


def trees(root: Path, folder: str) -> dict[Path, ast.Module]:
    """Python file → its syntax tree."""
    return {path: ast.parse(path.read_text()) for path in tracked(root, folder) if path.suffix == ".py"}


def imported_files(source: Path, start: str) -> set[Path]:
    """The files of a module's own package that it imports, directly or through others, with the module's own.

    Imports in functions count, those under `if TYPE_CHECKING` do not. `source` is the folder of the package.
    """
    package, found, left = start.partition(".")[0], set[Path](), [start]
    while left:
        for path in _files_of(source, left.pop()):
            if path not in found:
                found.add(path)
                names = (name for node in _executed(ast.parse(path.read_text())) for name in _imports(node))
                left += [name for name in names if name.partition(".")[0] == package]
    return found


def _files_of(source: Path, name: str) -> Iterator[Path]:
    """The files of a module and of the packages around it; of a name in a module, those of the module."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        folder = source.joinpath(*parts[:end])
        yield from (path for path in (folder.with_suffix(".py"), folder / "__init__.py") if path.is_file())


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker reads."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield child
            yield from _executed(child)


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def local_names(function: ast.FunctionDef) -> set[str]:
    """A function's parameters and the names that it binds."""
    nodes = list(ast.walk(function))
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return bound | {node.arg for node in nodes if isinstance(node, ast.arg)}


def lines_by_option(lines: Sequence[str]) -> dict[str, int]:
    """Option → lines that name it, and `any` → lines that name at least one."""
    patterns = {**OPTIONS, "any": "|".join(OPTIONS.values())}
    return {name: sum(bool(re.search(p, line, re.IGNORECASE)) for line in lines) for name, p in patterns.items()}


def run_protocols(nodes: Sequence[ast.AST]) -> list[str]:
    """Protocols with "Run" in their names: the run under another name."""
    classes = (node for node in nodes if isinstance(node, ast.ClassDef) and "Run" in node.name)
    return [each.name for each in classes if any("Protocol" in ast.unparse(base) for base in each.bases)]


def command_names(nodes: Sequence[ast.AST]) -> list[str]:
    """The names in all `Command(name=…)`."""
    calls = (node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "Command")
    keywords = [keyword.value for call in calls for keyword in call.keywords if keyword.arg == "name"]
    return sorted(str(value.value) for value in keywords if isinstance(value, ast.Constant))


def static_rows(root: Path) -> Iterator[tuple[str, str]]:
    """The rows that need no run."""
    yield from ((f"lines of {folder}", f"{python_lines(root, folder):,}") for folder in PACKAGES)
    files = imported_files(root / "src", "apo_lightning.module")
    lines = sum(len(path.read_text().splitlines()) for path in files)
    yield "files that apo_lightning.module imports", f"{len(files)} ({lines:,} lines)"
    nodes = [node for tree in trees(root, "src").values() for node in ast.walk(tree)]
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and node.name == "microbatch_loss":
            yield "names in microbatch_loss", str(len(local_names(node)))
    of_step = [path for name in ("module.py", "step", "update") for path in tracked(root, f"{FRAMEWORK}/{name}")]
    counts = lines_by_option([line for path in of_step for line in path.read_text().splitlines()])
    yield "lines of module.py and the step that name an option", str(counts.pop("any"))
    yield "… by option", ", ".join(f"{name} {count}" for name, count in counts.items())
    protocols, commands = run_protocols(nodes), command_names(nodes)
    yield "protocols of a run", f"{len(protocols)}: {', '.join(protocols)}" if protocols else "0"
    yield "commands", f"{len(commands)}: {', '.join(commands)}"
    yield "docs", f"{sum(path.stat().st_size for path in tracked(root, 'docs')) / 1e6:.1f} MB"


def files_of_step(root: Path) -> list[str]:
    """The framework's files in which a function is called during one training step, in a process of its own."""
    paths = os.pathsep.join(map(str, (root / "src", root)))
    command = [sys.executable, "-P", str(Path(__file__).resolve()), "--trace", f"--root={root}"]
    environment = os.environ | {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return sorted(line.removeprefix("entered ") for line in done.stdout.splitlines() if line.startswith("entered "))


def trace_step(root: Path) -> None:
    """Run one training step of the checkout that is imported here, and print the files that it enters."""
    package, entered, is_open = str(root / FRAMEWORK), set[str](), threading.Event()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package) and code.co_name != "<module>" and is_open.is_set():
            entered.add(os.path.relpath(code.co_filename, root / "src"))

    threading.setprofile(note)  # for threads that are started from now on
    sys.setprofile(note)
    from apo_lightning.module import RLVRModule
    from apo_lightning.run import train
    from apo_lightning.run.choices import composed

    training_step = RLVRModule.training_step

    def traced(*arguments: Any) -> Any:
        is_open.set()
        try:
            return training_step(*arguments)
        finally:
            is_open.clear()

    with mock.patch.object(RLVRModule, "training_step", traced), tempfile.TemporaryDirectory() as folder:
        train(composed("train", STEP), Path(folder))
    print(*(f"entered {name}" for name in entered), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="The size of a checkout, as Markdown.")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to measure")
    parser.add_argument("--files", action="store_true", help="list the files that a step enters")
    parser.add_argument("--static", action="store_true", help="run no step")
    parser.add_argument("--trace", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    root = given.root.resolve()
    if given.trace:
        trace_step(root)
        return
    print("| what | size |\n|:--|:--|")
    for name, value in static_rows(root):
        print(f"| {name} | {value} |")
    if not given.static:
        files = files_of_step(root)
        print(f"| files that a step enters | {len(files)} |")
        print(*(f"\n{name}" for name in files if given.files), sep="", end="")


if __name__ == "__main__":
    main()
