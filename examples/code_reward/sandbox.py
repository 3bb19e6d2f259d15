"""Runs untrusted Python in a child process of its own, and returns what the called function gives.

What is held is listed in README.md; `missing_limits` says what this machine cannot hold.
"""

import contextlib
import ctypes
import functools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MAX_OUTPUT_BYTES = 65536
UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child")


def run_function(
    code: str,
    function: str,
    calls: Sequence[Sequence[Any]],
    *,
    timeout_s: float = 5.0,
    cpu_s: int = 2,
    memory_bytes: int = 512 * 2**20,
    scratch_bytes: int = 2**20,
) -> list[tuple[bool, Any]] | None:
    """What `function` of `code` returns for each call: (True, value) or (False, name of its exception).

    None: the code did not get so far within its limits. Expected values never enter the child, so code cannot read
    them; a result is plain JSON, so it cannot bring an `__eq__` of its own.
    """
    limits = {"cpu_s": cpu_s, "memory_bytes": memory_bytes, "scratch_bytes": scratch_bytes}
    task = json.dumps({"code": code, "function": function, "calls": list(calls), "limits": limits})
    prefix = UNSHARE if has_namespaces() else ()
    with tempfile.TemporaryDirectory(prefix="sandbox-") as scratch:
        process = subprocess.Popen(
            [*prefix, sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=scratch,
            env={"TMPDIR": scratch, "HOME": scratch, "PATH": "/usr/bin:/bin"},
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(task.encode(), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            # The whole session: a grandchild would outlive its parent.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    try:
        results = json.loads(output) if len(output) <= MAX_OUTPUT_BYTES else None
    except ValueError:
        return None
    is_whole = (
        isinstance(results, list)
        and len(results) == len(calls)
        and all(isinstance(result, list) and len(result) == 2 for result in results)
    )
    return [(result[0] is True, result[1]) for result in results] if is_whole else None


def missing_limits() -> list[str]:
    """What this machine cannot hold, for the log of a run."""
    missing = []
    if not has_namespaces():
        missing.append("network, processes that leave the session (no unprivileged user namespaces)")
    if _landlock_version() < 1:
        missing.append("files outside the scratch folder (no Landlock in the kernel)")
    return missing


@functools.cache
def has_namespaces() -> bool:
    """Whether a process may give up the network without privileges."""
    return (
        shutil.which("unshare") is not None and not subprocess.run([*UNSHARE, "true"], capture_output=True).returncode
    )


def child() -> None:
    """The child process: gives up what it may not do, runs the code, and writes the results."""
    task = json.load(sys.stdin)
    results = os.dup(1)
    os.dup2(2, 1)  # prints of the code do not mix with the results
    _confine(str(Path.cwd()), **task["limits"])
    names: dict[str, Any] = {}
    exec(compile(task["code"], "<completion>", "exec"), names)
    found = []
    for arguments in task["calls"]:
        try:
            found.append([True, names[task["function"]](*arguments)])
        except Exception as error:
            found.append([False, type(error).__name__])
    os.write(results, json.dumps(found).encode())


def _confine(scratch: str, cpu_s: int, memory_bytes: int, scratch_bytes: int) -> None:
    """Cannot be taken back, and holds for everything that the code starts."""
    for limit, value in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, scratch_bytes),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a file that grows too large is an OSError
    _allow_writes_below(scratch)


# Landlock, Linux 5.13: system calls 444 to 446, for all architectures.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_WRITE_FILE, _LATER_RIGHTS = 1 << 1, {1: 0, 2: 1 << 13, 3: 1 << 14}  # 2: move between folders, 3: truncate
_WRITES = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))  # remove and make files, folders, links, devices


def _landlock_version() -> int:
    return ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, 1)


def _allow_writes_below(folder: str) -> None:
    """Forbid this process to write files outside of `folder`, if the kernel can."""
    libc, version = ctypes.CDLL(None, use_errno=True), _landlock_version()
    if version < 1:
        return
    rights = _WRITES | sum(right for since, right in _LATER_RIGHTS.items() if version >= since)
    attributes = ctypes.c_uint64(rights)
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(attributes), 8, 0)
    for path, allowed in ((folder, rights), ("/dev/null", _WRITE_FILE)):
        descriptor = os.open(path, os.O_PATH)
        rule = allowed.to_bytes(8, sys.byteorder) + descriptor.to_bytes(4, sys.byteorder)
        if libc.syscall(_ADD_RULE, ruleset, 1, rule, 0):
            raise OSError("landlock_add_rule failed")
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    if libc.syscall(_RESTRICT_SELF, ruleset, 0):
        raise OSError("landlock_restrict_self failed")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        child()
    else:
        print("not held here: " + ("; ".join(missing_limits()) or "nothing"))
        print(json.dumps(run_function(Path(sys.argv[1]).read_text(), sys.argv[2], json.loads(sys.argv[3]))))
