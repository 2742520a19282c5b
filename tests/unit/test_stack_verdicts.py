"""Verdicts on recorded stacks: collectives, actors, samples. Pure: no process runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raydebug.stacks.graph import Task
from raydebug.stacks.groups import group
from raydebug.stacks.verdict import judge

TORCH = "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
RAY = "/env/lib/python3.11/site-packages/ray/_private/worker.py"
QUEUE = "/usr/lib/python3.11/queue.py"


def frame(file: str, line: int, function: str) -> dict[str, Any]:
    return {"file": file, "line": line, "function": function}


def process(rank: int | None, *frames: dict[str, Any], role: str = "Trainer", **facts: Any) -> Any:
    """Return the stacks of a process whose main thread has these frames, innermost first."""
    thread = {"name": "MainThread", "frames": list(frames), **facts.pop("thread", {})}
    if frames and frames[0].get("text", "").startswith("time.sleep("):
        thread["in_call"] = "sleep"
    pid = facts.pop("pid", 100 + (rank or 0))
    return {"pid": pid, "child_of": None, "ip": "10.0.0.1", "node_id": "n", "worker_id": "w", "job": "j", "job_id": "1",
            "rank": rank, "world": 4, "actor_id": None, "actor": role, "is_driver": False, "instance": str(pid),
            "role": role, "state": "answered", "age_s": 0.0, "threads": [thread], "pauses": [], **facts}  # fmt: skip


def collective(rank: int, name: str = "all_reduce", line: int = 40, **facts: Any) -> Any:
    return process(rank, frame(TORCH, 3000, name), frame("/job/train.py", line, "sync_grads"), **facts)


LOADING = (frame("/job/data.py", 12, "load"), frame("/job/train.py", 30, "step"))


MISMATCH, MISSING = "collective-mismatch", "missing-rank"
IDLE = frame(RAY, 900, "Worker.main_loop"), frame("/x/ray/_private/workers/default_worker.py", 300, "<module>")
WAIT = [collective(rank) for rank in (0, 1, 3)]
JOINS = [
    process(None, frame(TORCH, 1800, "init_process_group"), frame("/job/train.py", 9, "setup"), pid=pid)
    for pid in (1, 2)
]


@pytest.mark.parametrize(
    ("samples", "kind", "certainty", "ranks", "words"),
    [
        ([[*(collective(rank) for rank in range(3)), collective(3, "broadcast", 44)]], MISMATCH, "likely", [3],
         "Trainer rank 3 in broadcast at /job/train.py:44 sync_grads; Trainer ranks 0-2 in all_reduce"),
        ([[*WAIT, process(2, *LOADING)]], MISSING, "likely", [2],
         "rank 2 did not join all_reduce: it is at /job/data.py:12 load; Trainer ranks 0,1,3 wait in all_reduce"),
        ([[*WAIT, process(2, *IDLE)]], MISSING, "likely", [2],
         "rank 2 did not join all_reduce: it is idle, its task has returned;"),
        ([WAIT], "starting", "likely", [2],
         "Trainer rank 2 is not there (yet): no such process was seen; Trainer ranks 0,1,3"),
        ([[*WAIT, process(2, *LOADING)], WAIT], "crashed-peer", "certain", [2], "the process of rank 2 is gone"),
        ([[collective(rank) for rank in range(4)]], "unknown", "likely", [0, 1, 2, 3],
         "Trainer ranks 0-3 wait in all_reduce at /job/train.py:40 sync_grads; no rank"),
        ([[*JOINS, process(None, *LOADING, pid=3)]], MISSING, "likely", [],
         "Trainer (pid 3) did not join init_process_group: it is at /job/data.py:12 load; 2 processes of Trainer"),
        ([[collective(0, "send", world=2), collective(1, "recv", world=2)]], "unknown", "likely", [0, 1], ""),
    ],
    ids=["other collective", "missing", "returned", "not there yet", "gone", "none missing", "joins", "two kinds"],
)  # fmt: skip
def test_collectives_by_stacks(samples: Any, kind: str, certainty: str, ranks: list[int], words: str) -> None:
    """Without recorded calls the rank that is elsewhere, or not there, is named with its line; none where all wait."""
    verdict = judge(samples)
    assert (verdict["kind"], verdict["certainty"], verdict["ranks"]) == (kind, certainty, ranks)
    assert words in verdict["text"]
    following = {MISSING: "raydebug attach --pid ", MISMATCH: "raydebug stacks --locals 103@10.0.0.1"}
    assert (verdict["next"] or "").startswith(following.get(kind, ""))


def test_slow_collective() -> None:
    """Ranks that pass a collective again and again do not hang."""
    before = [collective(rank, line=40) for rank in range(4)]
    after = [collective(rank, line=41) for rank in range(4)]
    assert judge([before, after])["kind"] == "moving"
    waits = [*(collective(rank) for rank in (0, 1, 3)), process(2, *LOADING)]
    computes = [*waits[:3], process(2, frame("/job/data.py", 13, "load"))]
    assert judge([waits, computes])["kind"] == "moving", "the others wait for a slow rank"
    assert judge([waits, waits])["kind"] == MISSING


def test_computing_is_no_hang() -> None:
    """A thread that uses CPU at one line computes; one that polls inside a known wait does not."""
    line = frame("/job/train.py", 30, "step")
    busy = [[process(0, line, thread={"cpu_s": cpu_s})] for cpu_s in (1.0, 2.9)]
    assert judge(busy)["kind"] == "moving"
    polls = [[process(0, frame(QUEUE, 180, "Queue.get"), line, thread={"cpu_s": cpu_s})] for cpu_s in (1.0, 2.9)]
    assert judge(polls)["kind"] == "queue"


# By torch's flight recorder


def calls(rank: int, *called: tuple[str, int, bool], ranks: range = range(3), name: str = "0") -> dict[str, Any]:
    """Return a process group of torch on a rank: (operation, elements, done) of each collective, from 1."""
    given = [
        {
            "backend": "gloo", "seq": seq, "op": op, "sizes": f"[{elements}]", "elements": elements, "dtypes": "Float",
            "done": done,
        }
        for seq, (op, elements, done) in enumerate(called, 1)
    ]  # fmt: skip
    group = {"name": name, "description": "default_pg", "rank": rank, "ranks": list(ranks), "calls": given}
    return {"collectives": [group], "world": len(ranks)}


DONE, WAITS = ("all_reduce", 1000, True), ("all_reduce", 1000, False)
TRAIN = frame("/job/train.py", 44, "sync_grads")


OTHERS = [collective(rank, **calls(rank, DONE, WAITS)) for rank in (0, 1)]
FIRST_AND_LAST = [collective(rank, **calls(rank, DONE, WAITS)) for rank in (0, 2)]
PAIR = {"ranks": range(2)}
LOADS = process(1, *LOADING, **calls(1, DONE))


@pytest.mark.parametrize(
    ("samples", "kind", "certainty", "ranks", "text"),
    [
        ([[*OTHERS, process(2, LOADING[0], **calls(2, DONE, ("broadcast", 4, True)))]], MISMATCH, "certain", [2],
         ("Trainer ranks 0-2 differ in collective 2 of group 0 default_pg gloo: rank 2 has called broadcast [4] Float,"
          " and is at /job/data.py:12 load; ranks 0,1 call all_reduce [1000] Float at /job/train.py:40 sync_grads")),
        ([[*OTHERS, collective(2, "broadcast", 44, **calls(2, DONE, ("broadcast", 4, False)))]], MISMATCH,
         "certain", [2], "rank 2 calls broadcast [4] Float at /job/train.py:44 sync_grads; ranks 0,1"),
        ([[collective(0, **calls(0, DONE, WAITS, **PAIR)),
           collective(1, "all_gather", 50, **calls(1, DONE, ("allgather", 7, False), **PAIR))]], MISMATCH,
         "certain", [1], ("rank 1 calls allgather [7] Float at /job/train.py:50 sync_grads; rank 0 calls all_reduce"
                          " [1000] Float at /job/train.py:40")),
        ([[*FIRST_AND_LAST, LOADS]] * 2, MISSING, "certain", [1],
         ("Trainer rank 1 did not join all_reduce [1000] Float: it is at /job/data.py:12 load; ranks 0,2 wait in"
          " collective 2 of group 0 default_pg gloo, all_reduce [1000] Float, at /job/train.py:40 sync_grads")),
        ([[*FIRST_AND_LAST, LOADS]], MISSING, "likely", [1], "it is at /job/data.py:12 load"),
        ([[*FIRST_AND_LAST, process(1, *IDLE, **calls(1, DONE))]], MISSING, "likely", [1],
         "it is idle, its task has returned"),
        ([[*FIRST_AND_LAST, process(1, state="silent", threads=[], **calls(1, DONE))]], MISSING, "likely", [1],
         "it does not answer"),
        ([FIRST_AND_LAST], "crashed-peer", "certain", [1],
         "the process of Trainer rank 1 is gone; ranks 0,2 wait in collective 2"),
    ],
    ids=["has called another", "calls another", "of two", "missing", "in one look", "idle", "silent", "gone"],
)  # fmt: skip
def test_recorded_calls(samples: Any, kind: str, certainty: str, ranks: list[int], text: str) -> None:
    """By the flight recorder the rank that calls another collective, none, or is gone is named, with number and group.

    Of two ranks that differ the one that is not rank 0 is named; in one look a rank may only be late.
    """
    verdict = judge(samples)
    assert (verdict["kind"], verdict["certainty"], verdict["ranks"]) == (kind, certainty, ranks)
    assert text in verdict["text"]
    of = f"{100 + ranks[0]}@10.0.0.1"  # one that waits comes to no line at which it could pause
    known = {"crashed-peer": "diagnose", MISMATCH: f"stacks --locals {of}"}
    assert verdict["next"] == f"raydebug {known.get(kind, f'attach --pid {of}')}"


def test_a_process_without_a_rank_yet() -> None:
    """No rank of a group is gone while a process has not said its rank."""
    assert judge([[*FIRST_AND_LAST, process(None, *LOADING, pid=9)]])["kind"] != "crashed-peer"


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (("all_reduce", 1000, False), ("all_reduce", 1001, False), "collective-mismatch"),
        (("alltoall_base", 7, False), ("alltoall_base", 9, False), "unknown"),
        (("gather", 7, False), ("gather", 7, True), "unknown"),
    ],
    ids=["sizes", "uneven all-to-all", "gather"],
)
def test_sizes_of_inputs(first: tuple[str, int, bool], second: tuple[str, int, bool], kind: str) -> None:
    """Inputs of different sizes are a mismatch only in collectives that need equal sizes."""
    waits = [collective(rank, **calls(rank, call, ranks=range(2))) for rank, call in enumerate((first, second))]
    assert judge([waits])["kind"] == kind


def test_group_of_a_trainer_and_its_engines() -> None:
    """In a group of OpenRLHF that counts more ranks than its trainer has, no rank of the trainer is gone or missing."""
    waits = {**collective(0, **calls(0, WAITS, ranks=range(9))), "world": 4}
    others = [process(1, state="silent", threads=[]), *(process(rank, *LOADING) for rank in (2, 3))]
    assert judge([[waits, *others]])["kind"] not in ("crashed-peer", "missing-rank")


def test_calls_that_have_no_number() -> None:
    """Ranks of a group of ray.util.collective that are one call apart do not differ: it counts no calls."""
    ranks = [collective(rank, "broadcast", **calls(rank, ("broadcast", 17 if rank else 4, False))) for rank in range(3)]
    for one in ranks:
        one["collectives"][0]["description"] = "ray.util.collective"
    assert judge([ranks])["kind"] == "unknown"


def test_ranks_with_roles_of_their_own() -> None:
    """A rank whose process has another name than the others' is not gone."""
    names = [collective(rank, role=f"worker {rank}", **calls(rank, WAITS, ranks=range(2))) for rank in (0, 1)]
    assert judge([names])["kind"] == "unknown"


def test_two_backends_of_a_group() -> None:
    """The collectives of gloo and NCCL are counted apart; a rank without a call in one of them is missing there."""
    waits = [process(rank, TRAIN, **calls(rank, DONE)) for rank in range(3)]
    for one, (op, done) in zip(waits, (("allgather", True), ("allgather", True), ("reduce", True)), strict=True):
        call = {"backend": "nccl", "seq": 1, "op": op, "sizes": "[1]", "elements": 1, "dtypes": "Float", "done": done}
        one["collectives"][0]["calls"].append(call)
    assert judge([waits])["kind"] == "unknown", "no rank waits"
    for one in waits[:2]:
        one["collectives"][0]["calls"][-1]["done"] = False
    verdict = judge([waits])
    assert (verdict["kind"], verdict["ranks"]) == ("collective-mismatch", [2])
    assert "in collective 1 of group 0 default_pg nccl: rank 2 has called reduce" in verdict["text"]
    waits[2]["collectives"][0]["calls"].pop()
    assert judge([waits])["kind"] == "missing-rank"
    waits[2]["collectives"][0]["full"] = True
    assert judge([waits])["kind"] == "unknown", "its calls of NCCL may be overwritten"


def test_cause_among_groups() -> None:
    """A rank that is missing because it waits in another group's collective is explained by that group."""
    waits_for_0 = collective(1, **calls(1, WAITS, ranks=range(2), name="1"))
    waits_for_2 = collective(0, **calls(0, WAITS, ranks=range(0, 4, 2), name="2"))
    waits_for_2["collectives"].insert(0, calls(0, ranks=range(2), name="1")["collectives"][0])
    loads = process(2, *LOADING, **calls(2, ranks=range(0, 4, 2), name="2"))
    verdict = judge([[waits_for_2, waits_for_0, loads]])
    assert (verdict["kind"], verdict["ranks"]) == ("missing-rank", [2])


def test_recorded_progress() -> None:
    """Ranks that wait at the same line in two samples, but in another collective, do not hang."""
    before = [*(collective(rank, **calls(rank, DONE, WAITS)) for rank in (0, 1)), process(2, TRAIN, **calls(2, DONE))]
    after = [
        *(collective(rank, **calls(rank, DONE, DONE, WAITS)) for rank in (0, 1)),
        process(2, TRAIN, **calls(2, DONE, DONE)),
    ]
    assert judge([before, after])["kind"] == "moving"
    slow = [*before[:2], process(2, frame("/job/train.py", 50, "step"), **calls(2, DONE))]
    verdict = judge([before, slow])
    assert verdict["kind"] == "moving"
    assert "Trainer rank 2 is at /job/train.py:50 step, and moves; ranks 0,1 wait in collective 2" in verdict["text"]
    assert judge([before, before])["kind"] == "missing-rank"


def test_groups_that_cannot_be_told_apart() -> None:
    """With two trainings of the same actor class and ranks, no rank of one is blamed for the other with certainty."""
    one = [collective(rank, **calls(rank, DONE, WAITS, ranks=range(2))) for rank in (0, 1)]
    other = [process(rank, TRAIN, pid=200 + rank, **calls(rank, DONE, ranks=range(2))) for rank in (0, 1)]
    assert judge([[*one, *other]])["certainty"] == "likely"


@pytest.mark.parametrize(
    ("how", "kind", "ranks", "words"),
    [
        ("mismatch", "collective-mismatch", [2],
         "rank 2 calls broadcast [4] Float at /workspace/planted_torch.py:36 Trainer.sync_metrics; ranks 0,1 call"),
        ("missing", "missing-rank", [1], "all_reduce [1000] Float: it is at /workspace/planted_torch.py:52 Trainer"),
        ("skipped", "missing-rank", [1], "all_reduce [1000] Float: it is idle, its task has returned; rank 0 waits in"),
        ("unrecorded", "missing-rank", [1], "rank 1 did not join all_reduce: it is at /workspace/planted_torch"),
        ("crashed", "crashed-peer", [3], "the process of Trainer rank 3 is gone; rank 1 waits in"),
        ("loader", "lock", [], "waits for a lock at /workspace/planted_torch.py:92 Rows.__getitem__"),
    ],
)  # fmt: skip
def test_recorded_hangs(how: str, kind: str, ranks: list[int], words: str) -> None:
    """The verdicts on stacks that tests/cpu/test_torch_hangs.py recorded with torch 2.13, Ray 2.60 and gloo."""
    recorded = json.loads((Path(__file__).parent / "recorded_hangs.json").read_text(encoding="utf-8"))
    verdict = judge([recorded[how]])
    assert (verdict["kind"], verdict["ranks"]) == (kind, ranks)
    assert words in verdict["text"]


LOADER = "/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
LOADER_WORKER = "/env/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py"


@pytest.mark.parametrize(
    ("worker", "kind", "words"),
    [
        ({"threads": [], "state": "silent"}, "gil", "ray::Trainer (pid 77) is not answering: native code holds"),
        ({}, "unknown", "ray::Trainer (pid 77) is at /job/data.py:12 load"),
        (None, "data-loader", "Trainer rank 0 waits for a worker of its DataLoader at /job/train.py:44"),
    ],
    ids=["silent", "stuck", "gone"],
)
def test_data_loader(worker: dict[str, Any] | None, kind: str, words: str) -> None:
    """A process that waits for a DataLoader is named with the place of its worker, also if that does not answer."""
    waits = process(0, frame(LOADER, 1300, "_MultiProcessingDataLoaderIter._try_get_data"), TRAIN, world=1)
    stuck = process(
        None, LOADING[0], frame(LOADER_WORKER, 350, "_worker_loop"), role="ray::Trainer", pid=77, child_of=100
    )
    verdict = judge([[waits, *([] if worker is None else [{**stuck, **worker}])]])
    assert (verdict["kind"], words in verdict["text"]) == (kind, True), verdict
    assert "Trainer rank 0 waits for a worker of its DataLoader" in verdict["text"]


def test_paused_process_is_no_hang() -> None:
    """If raydebug has paused a process, the verdict is that the others wait for it."""
    verdict = judge([[collective(0), process(1, *LOADING, pauses=["7"])]])
    assert (verdict["kind"], verdict["next"]) == ("paused", "raydebug attach 7")


@pytest.mark.parametrize(
    ("state", "is_free", "kind", "words"),
    [
        ("PENDING_NODE_ASSIGNMENT", False, "ray-get", "for which no node has room: it needs 8 GPUs"),
        ("PENDING_NODE_ASSIGNMENT", True, "ray-get", "not placed yet: it needs 8 GPUs, and as much is free"),
        (
            *("SUBMITTED_TO_WORKER", False, "mailbox"),
            "which waits in the mailbox of Critic (pid 9); that is at /job/critic.py:5 fit",
        ),
        ("RUNNING", False, "queue", "Critic (pid 9) waits for a queue (get) at /job/critic.py:5 fit"),
    ],
)
def test_ray_get(state: str, is_free: bool, kind: str, words: str) -> None:
    """The verdict on ray.get depends on the state of the task that makes the object."""
    frames = (frame(RAY, 1000, "Worker.get_objects"), frame(RAY, 3000, "get"), frame("/job/main.py", 9, "<module>"))
    driver = process(None, *frames, role="driver", thread={"objects": ["ab" * 28]}, pid=8)
    critic = process(
        None, frame(QUEUE, 180, "Queue.get"), frame("/job/critic.py", 5, "fit"), role="Critic", pid=9, actor_id="c1"
    )
    name = "Critic.fit" if state == "RUNNING" else "Critic.status"
    task: Task = {"task_id": "ab" * 24, "name": name, "state": state, "actor_id": "c1", "pid": 9,
                  "needs": "8 GPUs", "is_free": is_free}  # fmt: skip
    verdict = judge([[driver, critic]], [task])
    assert (verdict["kind"], words in verdict["text"]) == (kind, True), verdict


def test_actors_that_wait_for_each_other() -> None:
    """Two actors in ray.get of each other's methods are a deadlock; each is named with method and line."""

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
    """Equal stacks are one group; lines inside packages do not count. The few that differ come first."""
    ranks = [collective(rank) for rank in range(7)]
    ranks[1]["threads"][0]["frames"][0]["line"] = 3001
    found = group([*ranks, process(7, *LOADING)])
    assert [(one["ranks"], one["outlier"]) for one in found] == [([7], True), ([0, 1, 2, 3, 4, 5, 6], False)]


def test_gil_from_outside() -> None:
    """A process that does not answer is explained by the call that holds Python's lock, as py-spy sees it."""
    hold = frame("/env/lib/python3.11/site-packages/fast/core.py", 8, "solve")
    threads = [{"name": "MainThread", "frames": [hold, frame("/job/train.py", 30, "step")], "gil": True}]
    stuck = process(1, state="silent", threads=threads)
    verdict = judge([[process(0, *LOADING), stuck]])
    assert (verdict["kind"], verdict["certainty"], verdict["pids"]) == ("gil", "likely", [101])
    assert verdict["text"] == (
        "Trainer rank 1 is not answering: native code holds Python's lock (GIL), called at fast/core.py:8 solve, "
        "from /job/train.py:30 step"
    )
    assert verdict["next"] == "raydebug stacks --native"
    native = [{**threads[0], "frames": [frame("/usr/lib/libc.so.6", 0, "nanosleep"), *threads[0]["frames"]]}]
    certain = judge([[{**stuck, "native": native}]])
    assert (certain["certainty"], certain["next"]) == ("certain", None), "the C frame is seen"
    assert judge([[{**stuck, "native": threads}]])["certainty"] == "likely", "Python runs: it may only be slow"
    stopped = judge([[{**stuck, "stopped": True}]])
    assert (stopped["kind"], stopped["next"]) == ("stopped", "kill -CONT 101")
    waits = judge([[collective(0), collective(2), collective(3), stuck]])
    assert (waits["kind"], waits["ranks"]) == ("missing-rank", [1])
    assert "/job/train.py:30 step, where native code holds Python's lock (GIL); Trainer ranks 0,2,3" in waits["text"]


def test_stack_from_outside_is_no_movement() -> None:
    """A process that answered before, and that py-spy reads now, has not moved because of that."""
    before = process(0, frame("/job/train.py", 30, "Actor.step"))
    after = process(0, state="silent", threads=[{"name": "MainThread", "frames": [frame("/job/train.py", 30, "step")]}])
    assert judge([[before], [after]])["kind"] == "gil"
