"""What is asked of Ray's dashboard for a verdict, where it is slow or dead; what nodes say of silent processes."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_impostors import cluster_at
from test_stack_verdicts import frame, process
from test_wait_graph import asks, driver, task

from raydebug.cluster import dashboard
from raydebug.stacks import collect
from raydebug.stacks.verdict import judge

HTTP = frame("/env/lib/python3.11/site-packages/httpcore/_sync/http11.py", 90, "receive")


@pytest.mark.parametrize("is_there", [True, False], ids=["slow", "dead"])
def test_ray_does_not_answer(
    tmp_path: Path, is_there: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without an answer of Ray's in time its tasks are unknown, which is said, and the verdict is not certain."""
    monkeypatch.setattr(dashboard, "TASKS_TIMEOUT_S", 0.5)
    look = [driver("ab"), asks("Reward", 9)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not is_there:
            server.close()
        begun = time.monotonic()
        tasks = collect.fetch_tasks(cluster_at(tmp_path, 1, port), look)
    assert tasks == []
    assert time.monotonic() - begun < dashboard.TIMEOUT_S, "not the limit of other requests"
    assert "Ray's tasks are unknown, so who waits for whom in ray.get is too: " in capsys.readouterr().err
    verdict = judge([look, look], tasks)
    assert (verdict["pids"][0], verdict["certainty"]) == (9, "likely")


ROW = {"task_id": "ab" * 24, "name": "Reward.score", "state": "RUNNING", "actor_id": "t9", "worker_pid": 9}
TABLES: dict[str, tuple[int, Any]] = {
    "500": (500, "Failed to list tasks: the GCS does not answer"),
    "rows without names": (200, {"data": {"result": {"result": [{"state": "RUNNING"}]}}}),
    "names that are none": (200, {"data": {"result": {"result": [{**ROW, "task_id": 7, "name": None}]}}}),
    "rows that are none": (200, {"data": {"result": {"result": ["task"]}}}),
    "half an answer": (200, {"data": {"result": {}}}),
}


@contextlib.contextmanager
def dashboard_with(status: int, answer: Any) -> Iterator[int]:
    """Serve one answer to all questions; give the port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.parametrize("how", TABLES)
def test_table_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str) -> None:
    """Where Ray refuses, or its rows lack what a task has, the tasks are unknown, and that is said."""
    look = [driver("ab"), asks("Reward", 9)]
    with dashboard_with(*TABLES[how]) as port:
        tasks = collect.fetch_tasks(cluster_at(tmp_path, 1, port), look)
    said = capsys.readouterr().err
    assert (tasks, said.count("\n"), "Ray's tasks are unknown" in said) == ([], 1, True), said
    assert judge([look, look], tasks)["certainty"] == "likely"


def test_state_that_may_be_old(tmp_path: Path) -> None:
    """Ray hears of a task seconds late: only a state that was seen in two looks makes a verdict certain."""
    asking = process(None, HTTP, frame("/job/r.py", 5, "score"), pid=9, actor_id="t9", thread={"host": "10.0.0.9:80"})
    look = [driver("ab"), asking]
    with dashboard_with(200, {"data": {"result": {"result": [ROW]}}}) as port:
        first = collect.fetch_tasks(cluster_at(tmp_path, 1, port), look)
        again = collect.fetch_tasks(cluster_at(tmp_path, 1, port), look, first)
    found = [judge([look, look], tasks) for tasks in (first, again)]
    assert [(one["pids"][0], one["certainty"]) for one in found] == [(9, "likely"), (9, "certain")], found


def test_a_thousand_actors() -> None:
    """Of 1,000 actors 999 ask a barrier again and again, and one waits for a server: that one is named."""
    count, late = 1000, 617
    codes = [f"{number:048x}" for number in range(count)]
    tasks = [
        {**task("ab", "Worker.work", f"a{number}"), "task_id": code, "pid": 1000 + number}
        for number, code in enumerate(codes)
    ]
    work = {**frame("/job/worker.py", 8, "Worker.work"), "text": "time.sleep(0.5)"}
    look = [
        {**driver("ab"), "threads": [{**driver("ab")["threads"][0], "objects": [f"{one}00000000" for one in codes]}]}
    ]
    for number in range(count):
        frames = (HTTP, frame("/job/worker.py", 5, "Worker.reward")) if number == late else ()
        host = {"host": "10.0.0.9:80"} if number == late else {}
        look.append(process(None, *frames, work, role="Worker", pid=1000 + number, actor_id=f"a{number}", thread=host))
    verdict = judge([look, look], tasks)  # type: ignore[arg-type]
    assert (verdict["kind"], verdict["pids"][0]) == ("network", 1000 + late), verdict["text"]
    assert "an HTTP response from 10.0.0.9:80" in verdict["text"]
    assert "waits for Worker.work" in verdict["text"]


def test_node_that_does_not_answer() -> None:
    """A node that is gone leaves its silent processes in the list, and the verdict names the rank."""
    silent = process(3, state="silent", actor_id="t3", threads=[], ip="10.0.0.2")
    look = [driver("ab"), silent]
    verdict = judge([look, look], [task("ab", "Trainer.train", "t3")])
    assert (verdict["kind"], verdict["certainty"], verdict["ranks"]) == ("gil", "likely", [3])


def test_nothing_is_asked_without_a_wait(tmp_path: Path) -> None:
    """Ray is not asked where no process waits for an object."""
    assert collect.fetch_tasks(cluster_at(tmp_path, 1, 1), [asks("Reward", 9)]) == []


@pytest.mark.parametrize(
    ("seen", "fields"),
    [
        ({"gone": True, "cause": "process 9 has ended", "fix": "x"}, {"gone": True, "threads": []}),
        ({"stopped": True, "cause": "no right", "fix": "give it"}, {"stopped": True, "unread": "no right; give it"}),
        ({"asleep": "rpc_wait", "threads": [{"name": "MainThread", "frames": []}], "title": "ray::Trainer.train"},
         {"asleep": "rpc_wait", "role": "Trainer", "age_s": 0.0}),
    ],
    ids=["gone", "stopped", "asleep"],
)  # fmt: skip
def test_what_a_node_says(monkeypatch: pytest.MonkeyPatch, seen: dict, fields: dict) -> None:
    """What py-spy sees of a silent process is added to it; only a process that is there is said to be unread."""
    silent = process(None, state="silent", threads=[], actor=None, role="python", pid=9)
    silent["actor"] = None
    monkeypatch.setattr(collect, "_ask_nodes", lambda *_, **__: {"10.0.0.1": {"9": seen}})
    lines = collect.look_from_outside(None, [silent], native=False)  # type: ignore[arg-type]
    assert {name: silent.get(name) for name in fields} == fields
    assert lines == (["no stack of pid 9: no right; give it"] if "unread" in fields else [])


@pytest.mark.parametrize(
    ("silent", "others", "expected"),
    [
        ([("Trainer", None)], [("Trainer", 0), ("Trainer", 2)], [("Trainer", 1)]),
        ([("python", None)], [("Trainer", 0), ("Trainer", 1)], [("Trainer", 2)]),  # it has not said who it is
        ([("Trainer", None)] * 2, [("Trainer", 0)], [("Trainer", None)] * 2),  # either may be either
        ([("python", None)], [("Trainer", 0), ("Trainer", 1), ("Critic", 0), ("Critic", 2)], [("python", None)]),
        ([("Trainer", None)], [("Trainer", 0), ("Trainer", 1), ("Trainer", 2)], [("Trainer", None)]),
        ([("Trainer", 1)], [("Trainer", 0)], [("Trainer", 1)]),  # as it has said in its last answer
    ],
)
def test_rank_of_a_silent_process(silent: list[Any], others: list[Any], expected: list[Any]) -> None:
    """A process that has never answered has the rank that its peers lack, where only one can be meant."""
    found = [
        {**process(rank, state="silent", role=role, threads=[], actor=None), "world": None, "actor": None}
        for role, rank in silent
    ]
    collect.name_by_peers([*found, *[{**process(rank, role=role), "world": 3} for role, rank in others]])  # type: ignore[list-item]
    assert [(one["role"], one["rank"]) for one in found] == expected
