"""What is asked of Ray's dashboard for a verdict, where it is slow or dead; what nodes say of silent processes."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from test_impostors import cluster_at
from test_stack_verdicts import process
from test_wait_graph import asks, driver, task

from raydebug.cluster import dashboard
from raydebug.stacks import collect
from raydebug.stacks.verdict import judge


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
