"""A hub of one repository on this machine: as much of its HTTP interface as fetching a model needs."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REPO = "maker/model"
COMMIT = "a" * 40


class Hub:
    def __init__(self, files: Mapping[str, bytes], url: str, requests: list[str]) -> None:
        self.files = dict(files)
        self.url = url
        self.requests = requests  # what has been asked for, in order


@contextmanager
def running_hub(files: Mapping[str, bytes]) -> Iterator[Hub]:
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, with_body: bool) -> None:
            path = self.path.partition("?")[0]
            requests.append(f"{self.command} {path}")
            prefix = f"/api/models/{REPO}"
            if path.startswith(f"{prefix}/tree/"):
                self.json([{"type": "file", "path": n, "size": len(d), "oid": oid(d)} for n, d in files.items()])
            elif path == prefix or path == f"{prefix}/revision/main":
                self.json({"id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": [{"rfilename": n} for n in files]})
            elif path.startswith(f"/{REPO}/resolve/"):
                self.file(path.split("/", 5)[5], with_body)
            else:
                self.missing("RepoNotFound")

        def json(self, content: object) -> None:
            self.respond(200, json.dumps(content).encode(), True, {"Content-Type": "application/json"})

        def file(self, name: str, with_body: bool) -> None:
            if name not in files:
                self.missing("EntryNotFound")
                return
            headers = {"ETag": f'"{oid(files[name])}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            self.respond(200, files[name], with_body, headers)

        def missing(self, code: str) -> None:
            self.respond(404, b"{}", True, {"X-Error-Code": code, "X-Repo-Commit": COMMIT})

        def respond(self, status: int, body: bytes, with_body: bool, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body and self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Hub(files, f"http://127.0.0.1:{server.server_port}", requests)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
