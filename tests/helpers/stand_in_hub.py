"""A small stand-in of the hub's API on this machine: it creates a repository and takes one commit."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class StandInHub(ThreadingHTTPServer):
    """What it was given, by the name of the file and in words."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.created: list[dict] = []
        self.tokens: set[str | None] = set()
        self.refuses = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def stand_in_hub() -> Iterator[StandInHub]:
    with StandInHub() as hub:
        threading.Thread(target=hub.serve_forever, args=[0.01], daemon=True).start()
        yield hub
        hub.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: StandInHub

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.tokens.add(self.headers["Authorization"])
        if self.server.refuses:
            self._answer({"error": "this token may not write"}, status=403)
        elif self.path == "/api/repos/create":
            self.server.created.append(json.loads(content))
            self._answer({"url": f"{self.server.url}/lab/model", "name": "lab/model"})
        elif "/preupload/" in self.path:
            files = [{"path": file["path"], "uploadMode": "regular"} for file in json.loads(content)["files"]]
            self._answer({"files": [file | {"shouldIgnore": False} for file in files]})
        elif "/commit/" in self.path:
            for line in map(json.loads, content.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._answer({"commitUrl": f"{self.server.url}/lab/model/commit/1", "commitOid": "1"})
        else:
            self._answer({})

    def _answer(self, answer: dict, status: int = 200) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass
