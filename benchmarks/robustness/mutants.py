"""Tests that notice: operators of src are changed one at a time, and the tests that know the module are run.

    python -m benchmarks.robustness.mutants [--lines 150] [--seed 1] [--limit 90] [--others 0] [--only PATH]
        [--results outputs/mutants.csv]

Lines that have an operator, a constant or a call to change are drawn by lot, and one change is made in each, in a copy
of the checkout. A module's own tests are its doctests, the files that import it or a name of it, and the others of the
folder of tests that mirrors its own; they have `--limit` seconds. For what they miss, `--others` seconds go to
all other files that import it through others, the nearest first. At the end failed tests are run without a change:
their failures do not count. Each result is a row of the results file at once; a second call runs only what has none,
and with `--others` also what has survived without. Prints a row each, and totals.
"""

import argparse
import ast
import collections
import contextlib
import copy
import csv
import functools
import importlib
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks import ROOT

PACKAGES = {
    "apo_lightning": "framework", "apo_lab": "lab", "apo_plan": "plan", "math_answers": "math_answers",
}  # fmt: skip
"""Package → the folder of its tests."""
# A child that imports nothing but the project starts in a tenth of the time.
PRELOADED = ("lightning.pytorch", "peft", "transformers", "datasets", "hydra", "hypothesis", "scipy.stats", "pandas")
LEFT_OUT = (".venv", ".git", "outputs", "build", ".hypothesis", "__pycache__")
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip
COLUMNS = ("path", "line", "before", "after", "result", "test", "seconds")
NAME = re.compile(rf"\b(?:{'|'.join(PACKAGES)})(?:\.\w+)+")


class Mutant(NamedTuple):
    """One change: the source from `start` to `end` [bytes] becomes `after`."""

    path: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """The node with one operator changed, in each way."""
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            other = copy.deepcopy(node)
            other.ops[i] = SWAPPED[type(op)]()  # type: ignore[call-overload]
            yield other
    elif isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in SWAPPED:
        other = copy.deepcopy(node)
        other.op = SWAPPED[type(node.op)]()  # type: ignore[assignment]
        yield other
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        yield ast.Constant(not node.value if isinstance(node.value, bool) else node.value + 1)
    elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield ast.Pass()


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but annotations, and what only a type checker reads."""
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            is_read = field not in ("annotation", "returns") and isinstance(child, ast.AST)
            if is_read and not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
                yield child
                yield from executed(child)


def mutants(root: Path, path: Path) -> Iterator[Mutant]:
    source, name = path.read_bytes(), str(path.relative_to(root))
    starts = [0, *(found.end() for found in re.finditer(rb"\n", source))]
    nodes: Iterator[Any] = executed(ast.parse(source))
    for node in nodes:
        for other in changed(node):
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            after = ast.unparse(other) if isinstance(other, (ast.stmt, ast.Constant)) else f"({ast.unparse(other)})"
            yield Mutant(name, node.lineno, start, end, source[start:end].decode(), after)


def drawn(root: Path, lines: int, seed: int, only: str) -> list[Mutant]:
    """A change of each of so many lines. With more lines, those of fewer come first."""
    of_line = collections.defaultdict(list)
    for package in PACKAGES:
        for path in sorted((root / "src" / package).rglob("*.py")):
            for mutant in mutants(root, path):
                of_line[mutant.path, mutant.line].append(mutant)
    lot = random.Random(seed)
    chosen = lot.sample(sorted(of_line), len(of_line))
    picked = (lot.choice(of_line[each]) for each in chosen)
    return [mutant for mutant in picked if f"{mutant.path}:{mutant.line}:".startswith(only)][:lines]


class Imports:
    """Which file imports which, in a checkout: also by a name that a package hands on, and by a name in a string."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tests = sorted((root / "tests").rglob("test_*.py"))

    @functools.cache  # noqa: B019
    def of(self, path: Path) -> frozenset[Path]:
        text = path.read_text()
        names = {name for name, _ in self._aliases(path).values()} | set(NAME.findall(text))
        names |= {f"{name}.{alias}" for name, alias in self._aliases(path).values() if alias}
        return frozenset(found for name in names for found in self._files(name)) - {path}

    @functools.cache  # noqa: B019
    def _aliases(self, path: Path) -> dict[str, tuple[str, str]]:
        """Name in the file → the module that it is imported from, and its name there, "" for the module itself."""
        found = {}
        for node in executed(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                found |= {alias.asname or alias.name: (alias.name, "") for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
        return found

    @functools.cache  # noqa: B019
    def _files(self, name: str) -> frozenset[Path]:
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            for folder in (self.root / "src", self.root / "tests/helpers", self.root):
                stem = folder.joinpath(*parts[:end])
                if stem.with_suffix(".py").is_file():
                    return frozenset({stem.with_suffix(".py")})
                package = stem / "__init__.py"
                if package.is_file():
                    module, alias = self._aliases(package).get(".".join(parts[end : end + 1]), ("", ""))
                    return self._files(f"{module}.{alias}") if module else frozenset({package})
        return frozenset()

    @functools.cache  # noqa: B019
    def _distances(self, test: Path) -> dict[Path, int]:
        """File → over how many imports a test reaches it; helpers of tests count as the test."""
        found, left = {test: 0}, collections.deque([test])
        while left:
            path = left.popleft()
            for each in self.of(path):
                if each not in found:
                    is_helper = self.root / "tests" in each.parents
                    found[each] = found[path] + (not is_helper)
                    (left.appendleft if is_helper else left.append)(each)
        return found

    def tests_of(self, name: str) -> tuple[list[Path], list[Path]]:
        """The tests of a module, and those that import it through others; the likeliest first."""
        path = self.root / name
        package, *folders = path.relative_to(self.root / "src").parent.parts
        mirror = self.root / "tests" / PACKAGES[package] / Path(*folders[:1])
        stem = path.stem.strip("_") or path.parent.name
        ranked = []
        for test in self.tests:
            distance = self._distances(test).get(path, 99)
            is_near = test.parent == mirror
            if distance < 99 or is_near:
                is_own = distance == 1 or is_near
                ranked.append((not is_own, distance, not is_near, stem not in test.stem, test))
        ranked.sort()
        return [path, *(each[-1] for each in ranked if not each[0])], [each[-1] for each in ranked if each[0]]


class Failures:
    """A plugin of pytest that keeps the order of the files given, the slow tests last, and sends what fails."""

    def __init__(self, files: Sequence[Path], end: Connection) -> None:
        self.order = {path: i for i, path in enumerate(files)}
        self.end = end

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        slow = ("vllm", "slow")
        items.sort(key=lambda item: (any(map(item.get_closest_marker, slow)), self.order.get(item.path, 0)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.end.send(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.end.send(report.nodeid or "collection")


def child(root: Path, files: Sequence[Path], nodes: Sequence[str], end: Connection) -> None:
    """Run pytest on the copy in this forked process, and send what fails: the first of the files, or all of `nodes`."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.chdir(root)
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (root / "src", root)))
    sys.path[:0] = [str(root / "src"), str(root)]
    for name in [name for name in sys.modules if name.partition(".")[0] in (*PACKAGES, "benchmarks", "hydra_plugins")]:
        del sys.modules[name]
    options = ["-q", "-p", "no:cacheprovider", "--doctest-modules", *(nodes or ["-x", *map(str, files)])]
    status = pytest.main(options, plugins=[Failures(files, end)])
    end.send("" if status in (0, 1, 5) else f"pytest ends with {int(status)}")
    os._exit(0)


def failures(root: Path, files: Sequence[Path], limit: float, nodes: Sequence[str] = ()) -> Iterator[str]:
    """The tests that fail, "" at the end; ends without it where the limit comes first."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process: Any = multiprocessing.get_context("fork").Process(target=child, args=(root, files, nodes, theirs))
    process.start()
    theirs.close()
    last = time.monotonic() + limit
    try:
        while ours.poll(max(0.0, last - time.monotonic())):
            yield (failed := ours.recv())
            if not failed:
                break
    except EOFError:
        yield "the process ended"
    finally:
        if process.is_alive():
            # Its own session holds all that the tests started.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.join()
        ours.close()


def judged(root: Path, mutant: Mutant, number: int, files: Sequence[Path], limit: float) -> tuple[str, str]:
    """The result of these tests, and the test that failed."""
    path = root / mutant.path
    source, before = path.read_bytes(), path.stat()
    path.write_bytes(mutant.applied(source))
    # Compiled files are taken for those of a source of the same size and second.
    os.utime(path, (before.st_atime, before.st_mtime + 1 + number))
    try:
        failed = next(failures(root, files, limit), None)
    finally:
        path.write_bytes(source)
        os.utime(path, (before.st_atime, before.st_mtime))
    return ("noticed" if failed else "survived" if failed == "" else "survived until the limit"), failed or ""


def rows_of(path: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """The last result of each change."""
    if not path.exists():
        return {}
    with path.open() as file:
        return {tuple(row[name] for name in COLUMNS[:4]): row for row in csv.DictReader(file)}


def totals(results: Iterable[str]) -> str:
    counts = collections.Counter(results)
    noticed = sum(count for result, count in counts.items() if result.startswith("noticed"))
    listed = ", ".join(f"{count} {result}" for result, count in counts.most_common())
    return f"{counts.total()} changes: {listed}; {noticed / max(counts.total(), 1):.1%} noticed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=90.0, help="seconds of a module's own tests")
    parser.add_argument("--others", type=float, default=0.0, help="seconds of the tests that import it through others")
    parser.add_argument("--only", default="", help="what path:line: begins with")
    parser.add_argument("--results", type=Path, default=ROOT / "outputs/mutants.csv")
    given = parser.parse_args()
    for name in PRELOADED:
        importlib.import_module(name)
    given.results.parent.mkdir(parents=True, exist_ok=True)
    found = rows_of(given.results)
    with tempfile.TemporaryDirectory() as folder, given.results.open("a") as file:
        root = Path(folder).resolve()
        shutil.copytree(ROOT, root, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
        imports, writer = Imports(root), csv.DictWriter(file, COLUMNS)
        if not found:
            writer.writeheader()
        results: list[tuple[str, str]] = []
        for number, mutant in enumerate(drawn(root, given.lines, given.seed, given.only)):
            key = (mutant.path, str(mutant.line), mutant.before, mutant.after)
            row = found.get(key)
            own, others = imports.tests_of(mutant.path)
            began = time.monotonic()
            if row is None:
                result, test = judged(root, mutant, number, own, given.limit)
                result += " by its own tests" * (result == "noticed")
            elif row["result"].startswith("survived") and "others" not in row["result"] and given.others and others:
                result, test = judged(root, mutant, number, others, given.others)
                result += {"noticed": " by others", "survived": " others too"}.get(result, " of others")
            else:
                results.append((row["result"], row["test"]))
                continue
            seconds = f"{time.monotonic() - began:.0f}"
            writer.writerow(dict(zip(COLUMNS, (*key, result, test, seconds), strict=True)))
            file.flush()
            results.append((result, test))
            change = f"`{mutant.before}` | `{mutant.after}`"
            print(f"| {mutant.path}:{mutant.line} | {change} | {result} | {test} |", flush=True)
        # A test that fails without the change too has noticed nothing.
        tests = sorted({test for _, test in results if (root / test.partition("::")[0]).is_file()})
        unsound = {*failures(root, [], 1800.0, tests)} - {""} if tests else set()
    print(totals("fails without it too" if test in unsound else result for result, test in results))


if __name__ == "__main__":
    main()
