"""The server of `apo watch`: it answers GET on 127.0.0.1 with pages and files of one run, and nothing else."""

import http.client
import os
import threading

import pytest

from apo_lab.commands.watch import newest_run, serve
from apo_lightning.errors import ConfigError


def make_run(folder, *, command="train", started=1_000_000):
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "config.yaml").write_text("trainer: {max_steps: 3}\n")
    (folder / ".hydra" / "hydra.yaml").write_text(f"hydra: {{job: {{config_name: {command}}}}}\n")
    os.utime(folder / ".hydra" / "config.yaml", (started, started))
    return folder


@pytest.fixture
def ask(tmp_path):
    """`ask(path)` → status, headers and body of the answer, from the server of a run beside a secret."""
    run = make_run(tmp_path / "run")
    (run / "metrics.csv").write_text("step,time/step,train/reward\n1,2.0,0.5\n")
    (run / "run.log").write_text("<script>alert(1)</script>")
    (tmp_path / "secret").write_text("secret")
    (run / "link").symlink_to(tmp_path / "secret")

    def answer(path, *, method="GET", host=None):
        connection = http.client.HTTPConnection(*server.server_address)
        connection.putrequest(method, path, skip_host=host is not None)
        if host is not None:
            connection.putheader("Host", host)
        connection.endheaders()
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()

    with serve(run, 0) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield answer
        server.shutdown()


def test_it_serves_the_page_and_the_files_of_the_run_on_this_machine_alone(ask):
    status, headers, page = ask("/")
    assert status == 200
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "<h1>run</h1>" in page
    assert ask("/metrics.csv")[2] == "step,time/step,train/reward\n1,2.0,0.5\n"
    assert ask("/.hydra/config.yaml?x=1")[0] == 200


def test_a_script_in_a_file_of_the_run_does_not_run(ask):
    _, headers, _ = ask("/run.log")
    assert headers["Content-Type"].startswith("text/plain")
    assert "sandbox" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/../secret",
        "/%2e%2e/secret",
        "/..%2fsecret",
        "//etc/passwd",
        "/link",
        "/.hydra",
        "/.hydra/../../secret",
        "/%00",
    ],
)
def test_nothing_outside_of_the_run_is_served(ask, path):
    status, _, body = ask(path)
    assert status == 404
    assert "root:" not in body
    assert "\nsecret" not in body


def test_other_methods_and_other_hosts_are_refused(ask):
    assert ask("/", method="POST")[0] == 501
    assert ask("/", method="DELETE")[0] == 501
    assert ask("/", host="evil.example:80")[0] == 403


def test_a_page_that_cannot_be_made_says_why(ask):
    status, _, body = ask("/rollouts.html")
    assert status == 503
    assert "there is no rollouts/step_*.jsonl in it" in body


def test_it_listens_on_the_loopback_interface_and_refuses_a_taken_port(tmp_path):
    run = make_run(tmp_path / "run")
    with serve(run, 0) as server:
        assert server.server_address[0] == "127.0.0.1"
        with pytest.raises(ConfigError, match=f"--port {server.server_port}: .*in use; give another one"):
            serve(run, server.server_port)


def test_the_newest_run_is_the_training_run_that_was_started_last(tmp_path):
    make_run(tmp_path / "2026-01-01" / "a", started=2000)
    last = make_run(tmp_path / "2026-01-01" / "b", started=3000)
    make_run(tmp_path / "evaluate", command="evaluate", started=4000)
    assert newest_run(tmp_path) == last
    with pytest.raises(ConfigError, match=r"no training run below .*: name its folder"):
        newest_run(tmp_path / "evaluate")
