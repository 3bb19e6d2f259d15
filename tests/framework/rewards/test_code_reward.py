"""The example of a reward that runs code; `tests/test_examples.py` runs the commands of its page."""

import json
import os
import socket
import sys
import time

import pytest

from composing import ROOT

FOLDER = ROOT / "examples" / "code_reward"
PROBLEMS = [json.loads(line) for line in (FOLDER / "problems.jsonl").read_text().splitlines()]


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import code_reward
    import sandbox

    yield code_reward, sandbox
    for name in ("code_reward", "sandbox"):
        del sys.modules[name]


def needs(sandbox, limit):
    if any(limit in missing for missing in sandbox.missing_limits()):
        pytest.skip(f"this machine does not hold: {limit}")


def call(sandbox, body, *arguments, **limits):
    code = f"def f(*a):\n    {body}"
    found = sandbox.run_function(code, "f", [arguments], **{"timeout_s": 60.0, "cpu_s": 20, **limits})
    return None if found is None else found[0]


def test_a_function_is_called_and_its_values_and_exceptions_return(example):
    _, sandbox = example
    assert call(sandbox, "print('noise'); return [a[0] + 1, 'x']", 1) == (True, [2, "x"])
    assert call(sandbox, "return a[0] / 0", 1) == (False, "ZeroDivisionError")
    assert call(sandbox, "import os; os._exit(0)") is None
    assert call(sandbox, "return {1, 2}") is None
    assert sandbox.run_function("def f(:", "f", [[]], timeout_s=60.0) is None


def test_time_and_memory_are_limited(example):
    _, sandbox = example
    start = time.monotonic()
    assert call(sandbox, "import time; time.sleep(600)", timeout_s=1.0) is None
    assert call(sandbox, "while True: pass", cpu_s=1) is None
    assert time.monotonic() - start < 120
    assert call(sandbox, "return len(bytearray(2 ** 30))") == (False, "MemoryError")


def test_nothing_is_written_outside_the_scratch_folder(example, tmp_path):
    _, sandbox = example
    inside = "open('x', 'w').write('1'); import os; return [os.listdir('.'), os.getcwd()]"
    is_value, (files, folder) = call(sandbox, inside)
    assert is_value
    assert files == ["x"]
    assert not os.path.exists(folder)  # noqa: PTH110
    assert call(sandbox, "open('x', 'wb').write(bytes(2 ** 21))")[0] is False
    needs(sandbox, "files outside")
    (tmp_path / "kept").write_text("1")
    for body in ("open(a[0] + '/new', 'w')", "open(a[0] + '/kept', 'w')", "import os; os.remove(a[0] + '/kept')"):
        assert call(sandbox, body, str(tmp_path)) == (False, "PermissionError")
    assert (tmp_path / "kept").read_text() == "1"
    assert not (tmp_path / "new").exists()


def test_there_is_no_network_and_no_process_stays(example, tmp_path):
    _, sandbox = example
    needs(sandbox, "network")
    with socket.create_server(("127.0.0.1", 0)) as server:
        body = "import socket; socket.create_connection(('127.0.0.1', a[0]), timeout=20); return 'reached'"
        is_value, _ = call(sandbox, body, server.getsockname()[1])
    assert not is_value
    stay = (
        "import os\n    if os.fork() == 0:\n        os.setsid()\n        __import__('time').sleep(600)\n    return a[0]"
    )
    start = time.monotonic()
    call(sandbox, stay, "unusual", timeout_s=3.0)
    assert time.monotonic() - start < 60


def test_the_reward_is_the_share_of_calls_that_are_right(example):
    code_reward, _ = example
    add = PROBLEMS[0]
    texts = [
        "Here:\n```python\ndef add(a, b):\n    return a + b\n```",
        "def add(a, b):\n    return 3",
        "def add(a, b):\n    return True",
        "```python\nimport os; os._exit(0)\n```",
        "I do not know.",
    ]
    columns = {name: [add[name]] * len(texts) for name in ("function", "calls", "expected")}
    extra = {}
    rewards = code_reward.passed_calls(texts, **columns, log_extra=extra.__setitem__)
    assert rewards == pytest.approx([1.0, 1 / 3, 0.0, 0.0, 0.0])
    assert extra["ran"] == [True, True, True, False, False]
