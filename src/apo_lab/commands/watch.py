"""A page that follows a training run, served to this machine alone."""

import argparse
import mimetypes
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml

from apo_lab.commands.report import read_report
from apo_lab.reporting.live import live_page, read_live
from apo_lab.reporting.page import page
from apo_lab.reporting.rollouts import read_rollouts, rollout_page
from apo_lab.reporting.runs import PRUNED, run_name
from apo_lightning.common.console import say
from apo_lightning.errors import ConfigError

ROOT = Path("outputs")
NUM_COMPLETIONS = 1000
"""Completions on the page `/rollouts.html`."""
OWN_PAGE = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'"
)
"""Content-Security-Policy of pages that this module renders: nothing from elsewhere is loaded."""
PAGES: Mapping[str, Callable[[Path], str]] = {
    "/": lambda run: live_page(read_live(run, time.time())),
    "/rollouts.html": lambda run: rollout_page(read_rollouts(run, NUM_COMPLETIONS)),
    "/report.html": lambda run: page(read_report([run], title=run_name(run), today=str(date.today()))),
}
"""Pages that are made when they are asked for, so that they show the run as it is."""
FILE = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
"""Content-Security-Policy of files of the run: no script in them runs."""


def watch(arguments: Sequence[str]) -> None:
    """Serve the page of a run until Ctrl-C; raises `ConfigError` if there is no such run or the port is taken."""
    parser = argparse.ArgumentParser(prog="apo watch", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="of a run; by default the newest one below outputs/")
    parser.add_argument("--port", type=int, default=8123, help="0: any free one")
    given = parser.parse_args(arguments)
    folder = newest_run(ROOT) if given.folder is None else given.folder
    with serve(folder, given.port) as server:
        say(f"watching {folder} at http://127.0.0.1:{server.server_port} (Ctrl-C ends this page, not the run)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("")


def serve(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server of this run on 127.0.0.1; port 0: any free port. Raises `ConfigError`."""
    read_live(folder, time.time())
    handler = type("Handler", (RunHandler,), {"folder": folder.resolve()})
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--port {port}: {error}; give another one, or 0 for any that is free") from None


def newest_run(root: Path) -> Path:
    """The training run below a folder that was started last; raises `ConfigError` if there is none."""
    found = []
    for parent, children, files in os.walk(root):
        children[:] = set(children) - PRUNED
        if Path(parent).name == ".hydra" and "hydra.yaml" in files:
            found.append(Path(parent))
    for folder in sorted(found, key=lambda folder: (folder / "config.yaml").stat().st_mtime, reverse=True):
        hydra = yaml.safe_load((folder / "hydra.yaml").read_text(encoding="utf-8"))["hydra"]
        if hydra["job"]["config_name"] == "train":
            return folder.parent
    raise ConfigError(f"there is no training run below {root}: name its folder, apo watch FOLDER")


class RunHandler(BaseHTTPRequestHandler):
    """Answers GET with a page of the run, or with a file of its folder."""

    folder: Path

    def do_GET(self) -> None:
        """Send a page or a file; 404 for a file that is not in the run's folder."""
        path = unquote(urlsplit(self.path).path)
        # A site in the browser may reach this server under a name of its own (DNS rebinding).
        if self.headers.get("Host", "").rpartition(":")[0] not in ("127.0.0.1", "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN, "This page is for 127.0.0.1 alone")
        elif path in PAGES:
            self._send_page(PAGES[path])
        else:
            self._send_file(self.folder / path.lstrip("/"))

    def _send_page(self, render: Callable[[Path], str]) -> None:
        try:
            content = render(self.folder).encode("utf-8", errors="backslashreplace")
        except ConfigError as error:
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, explain=str(error))
            return
        self._begin("text/html; charset=utf-8", OWN_PAGE)
        self.wfile.write(content)

    def _send_file(self, named: Path) -> None:
        try:
            path = named.resolve(strict=True)  # through links, which may lead out of the folder
        except (OSError, ValueError):
            path = self.folder
        if not (path.is_relative_to(self.folder) and path.is_file()):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        kind = mimetypes.guess_type(path.name)[0] or "text/plain"
        with path.open("rb") as file:
            self._begin(f"{kind}; charset=utf-8", FILE)
            shutil.copyfileobj(file, self.wfile)

    def _begin(self, kind: str, policy: str) -> None:
        self.send_response(HTTPStatus.OK)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Security-Policy", policy),
            ("X-Content-Type-Options", "nosniff"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the page asks every five seconds."""
