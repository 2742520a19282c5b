"""Verdicts on recorded stacks: collectives, actors, samples. Pure: no process runs."""

from __future__ import annotations

from typing import Any

import pytest

from raydebug.stacks.groups import group
from raydebug.stacks.verdict import Task, judge

TORCH = "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
RAY = "/env/lib/python3.11/site-packages/ray/_private/worker.py"
QUEUE = "/usr/lib/python3.11/queue.py"


def frame(file: str, line: int, function: str) -> dict[str, Any]:
    return {"file": file, "line": line, "function": function}


def process(rank: int | None, *frames: dict[str, Any], role: str = "Trainer", **facts: Any) -> Any:
    """Return the stacks of a process whose main thread has these frames, innermost first."""
    thread = {"name": "MainThread", "frames": list(frames), **facts.pop("thread", {})}
    pid = facts.pop("pid", 100 + (rank or 0))
    return {"pid": pid, "child_of": None, "ip": "10.0.0.1", "node_id": "n", "worker_id": "w", "job": "j", "job_id": "1",
            "rank": rank, "world": 4, "actor_id": None, "actor": role, "is_driver": False, "instance": str(pid),
            "role": role, "state": "answered", "age_s": 0.0, "threads": [thread], "pauses": [], **facts}  # fmt: skip


def collective(rank: int, name: str = "all_reduce", line: int = 40, **facts: Any) -> Any:
    return process(rank, frame(TORCH, 3000, name), frame("/job/train.py", line, "sync_grads"), **facts)


LOADING = (frame("/job/data.py", 12, "load"), frame("/job/train.py", 30, "step"))


def test_ranks_in_different_collectives() -> None:
    """One rank in another collective than the others is named, with its line."""
    verdict = judge([[*(collective(rank) for rank in range(3)), collective(3, "broadcast", 44)]])
    assert (verdict["kind"], verdict["ranks"], verdict["next"]) == (
        "collective-mismatch", [3], "raydebug attach --pid 103"
    )  # fmt: skip
    assert "rank 3 in broadcast at /job/train.py:44 sync_grads" in verdict["text"]
    assert "rank 0-2 in all_reduce" in verdict["text"]


def test_rank_that_does_not_come() -> None:
    """A rank outside of the collective of the others is named with the line where it is."""
    verdict = judge([[*(collective(rank) for rank in (0, 1, 3)), process(2, *LOADING)]])
    assert (verdict["kind"], verdict["ranks"]) == ("missing-rank", [2])
    assert verdict["text"] == (
        "rank 2 did not come to all_reduce: it is at /job/data.py:12 load; rank 0,1,3 of Trainer wait in all_reduce"
    )


def test_rank_that_is_gone() -> None:
    """A rank without a process explains why the others wait."""
    verdict = judge([[collective(rank) for rank in (0, 1, 3)]])
    assert (verdict["kind"], verdict["certainty"], verdict["ranks"]) == ("crashed-peer", "certain", [2])


def test_slow_collective() -> None:
    """Ranks that pass a collective again and again do not hang."""
    before = [collective(rank, line=40) for rank in range(4)]
    after = [collective(rank, line=41) for rank in range(4)]
    assert judge([before, after])["kind"] == "moving"
    waits = [*(collective(rank) for rank in (0, 1, 3)), process(2, *LOADING)]
    computes = [*waits[:3], process(2, frame("/job/data.py", 13, "load"))]
    assert judge([waits, computes])["kind"] == "missing-rank", "the rank moves, but the others wait for it"


def test_computing_is_no_hang() -> None:
    """A thread that uses CPU at one line computes; one that polls inside a known wait does not."""
    line = frame("/job/train.py", 30, "step")
    busy = [[process(0, line, thread={"cpu_s": cpu_s})] for cpu_s in (1.0, 2.9)]
    assert judge(busy)["kind"] == "moving"
    polls = [[process(0, frame(QUEUE, 180, "Queue.get"), line, thread={"cpu_s": cpu_s})] for cpu_s in (1.0, 2.9)]
    assert judge(polls)["kind"] == "queue"


def test_paused_process_is_no_hang() -> None:
    """Where a process is paused by raydebug, the others wait for that."""
    verdict = judge([[collective(0), process(1, *LOADING, pauses=["7"])]])
    assert (verdict["kind"], verdict["next"]) == ("paused", "raydebug attach 7")


@pytest.mark.parametrize(
    ("state", "kind", "words"),
    [
        ("PENDING_NODE_ASSIGNMENT", "ray-get", "for which no node has room: it needs 8 GPUs"),
        (
            "SUBMITTED_TO_WORKER",
            "mailbox",
            "which waits in the mailbox of Critic (pid 9); that is at /job/critic.py:5 fit",
        ),
        ("RUNNING", "queue", "Critic (pid 9) waits for a queue (get) at /job/critic.py:5 fit"),
    ],
)
def test_ray_get(state: str, kind: str, words: str) -> None:
    """What a driver waits for in ray.get depends on the state of the task that makes the object."""
    frames = (frame(RAY, 1000, "Worker.get_objects"), frame(RAY, 3000, "get"), frame("/job/main.py", 9, "<module>"))
    driver = process(None, *frames, role="driver", thread={"objects": ["ab" * 28]}, pid=8)
    critic = process(
        None, frame(QUEUE, 180, "Queue.get"), frame("/job/critic.py", 5, "fit"), role="Critic", pid=9, actor_id="c1"
    )
    task: Task = {"task_id": "ab" * 24, "name": "Critic.fit", "state": state, "actor_id": "c1", "pid": 9,
                  "needs": "8 GPUs"}  # fmt: skip
    verdict = judge([[driver, critic]], [task])
    assert (verdict["kind"], words in verdict["text"]) == (kind, True), verdict


def test_actors_that_wait_for_each_other() -> None:
    """Two actors in ray.get of each other's methods are a deadlock; each is named with the method and its line."""

    def asking(name: str, pid: int, wanted: str) -> Any:
        frames = (frame(RAY, 1000, "Worker.get_objects"), frame(RAY, 3000, "get"), frame("/job/actors.py", 7, "ask"))
        return process(None, *frames, role=name, actor_id=name, pid=pid, thread={"objects": [wanted * 28]})

    tasks: list[Task] = [
        {"task_id": code * 24, "name": f"{name}.answer", "state": "SUBMITTED_TO_WORKER", "actor_id": name, "pid": None,
         "needs": ""}
        for code, name in (("ab", "one"), ("cd", "other"))
    ]  # fmt: skip
    verdict = judge([[asking("one", 1, "cd"), asking("other", 2, "ab")]], tasks)
    assert verdict["kind"] == "deadlock"
    assert "one (pid 1) waits for other.answer at /job/actors.py:7 ask" in verdict["text"]


def test_groups() -> None:
    """Equal stacks make one group, whatever the line in a package; the few that differ come first."""
    ranks = [collective(rank) for rank in range(7)]
    ranks[1]["threads"][0]["frames"][0]["line"] = 3001
    found = group([*ranks, process(7, *LOADING)])
    assert [(one["ranks"], one["outlier"]) for one in found] == [([7], True), ([0, 1, 2, 3, 4, 5, 6], False)]
