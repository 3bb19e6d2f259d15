"""The registration of an edition: one hash of its protocol and its tasks; the commit of a run."""

import subprocess
from collections.abc import Sequence
from importlib import resources

from hydra.utils import instantiate

from apo_lab.editions.protocol import Protocol, World, protocol_text
from apo_lightning.common.identity import sha256_of
from apo_lightning.run.choices import composed

DECISION_VERSION = 1
"""Of the code that turns runs into verdicts: `editions.tuning`, `statistics` here and in `apo_report`. A change after
which equal rows could have another verdict raises it."""
BEFORE_VERSIONS = {
    "a19b2a5282a97f03": "595580b7a16cb8ab",  # full
    "559fbd086edf2e2f": "a594985e6f971c99",  # longer
    "5506fbd2878157e4": "573fe2b8887c28b4",  # cliff
    "fce2ce38a5844e9a": "20871a4ca68c61af",  # branches
    "63034a4ee1c7200e": "fd75ae54d38c0303",  # recipe
    "c54eb06a69c9b1fe": "7596b62b68c34a6c",  # countdown_rates
    "4016118e1f8598da": "d2107d572b3c6859",  # sizes
    "abffeb6d94be8354": "4c2638f5ee37f9dd",  # language
}
"""Hash of protocol and tasks → the registration of an edition that was published when it hashed the code too."""


def registration(protocol: Protocol) -> str:
    """The first 16 hex digits of a SHA-256 over protocol, tasks and `DECISION_VERSION`.

    Rows of runs carry it, and the page refuses rows of another.
    """
    parts = [protocol_text(protocol.name)]
    parts += [f"{name} {task_sha256(world)}" for name, world in protocol.worlds.items()]
    found = _hash(parts)
    return BEFORE_VERSIONS.get(found) or _hash([*parts, f"decisions {DECISION_VERSION}"])


def identity_of(protocol: Protocol) -> dict[str, str]:
    """What every row carries: the commit of the code and the registration of the edition."""
    return {"commit": commit(), "registration": registration(protocol)}


def _hash(parts: Sequence[str]) -> str:
    return sha256_of(["\n".join(parts).encode()])[:16]


def task_sha256(world: World) -> str:
    """Hash the training and held-out problems of a world, and the valid answers of the latter."""
    data = composed("train", [*world.run]).data
    source = instantiate(data)
    problems = source.load()
    lines = [row.problem for row in problems.train]
    for row in problems.validation[source.name]:
        lines += [row.problem, *(answer.text for answer in source.puzzle.answers(row.problem) if answer.is_valid)]
    return sha256_of(["\n".join(lines).encode()])


def commit() -> str:
    """The commit of the clone that this is in, with "+" where a file of `packages` was changed; empty without one."""
    root, packages = str(resources.files("apo_lab")), (".", "../apo_methods", "../apo_report")
    found = _git("rev-parse", "HEAD", root=root)
    return found[:12] + ("+" if found and _git("status", "--porcelain", "--", *packages, root=root) else "")


def _git(*words: str, root: str) -> str:
    try:
        done = subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
