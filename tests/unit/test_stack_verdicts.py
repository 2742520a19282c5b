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
    pid = facts.pop("pid", 100 + (rank or 0))
    return {"pid": pid, "child_of": None, "ip": "10.0.0.1", "node_id": "n", "worker_id": "w", "job": "j", "job_id": "1",
            "rank": rank, "world": 4, "actor_id": None, "actor": role, "is_driver": False, "instance": str(pid),
            "role": role, "state": "answered", "age_s": 0.0, "threads": [thread], "pauses": [], **facts}  # fmt: skip


def collective(rank: int, name: str = "all_reduce", line: int = 40, **facts: Any) -> Any:
    return process(rank, frame(TORCH, 3000, name), frame("/job/train.py", line, "sync_grads"), **facts)


LOADING = (frame("/job/data.py", 12, "load"), frame("/job/train.py", 30, "step"))


def test_ranks_in_different_collectives() -> None:
    """A rank in another collective than the others is named, with its line."""
    verdict = judge([[*(collective(rank) for rank in range(3)), collective(3, "broadcast", 44)]])
    assert (verdict["kind"], verdict["ranks"], verdict["next"]) == (
        "collective-mismatch", [3], "raydebug attach --pid 103"
    )  # fmt: skip
    assert "Trainer rank 3 in broadcast at /job/train.py:44 sync_grads" in verdict["text"]
    assert "Trainer ranks 0-2 in all_reduce" in verdict["text"]


def test_rank_that_does_not_come() -> None:
    """A rank outside of the collective of the others is named with the line where it is."""
    verdict = judge([[*(collective(rank) for rank in (0, 1, 3)), process(2, *LOADING)]])
    assert (verdict["kind"], verdict["ranks"]) == ("missing-rank", [2])
    assert verdict["text"] == (
        "rank 2 did not join all_reduce: it is at /job/data.py:12 load; Trainer ranks 0,1,3 wait in all_reduce"
    )


def test_rank_that_is_gone() -> None:
    """A rank without a process explains why the others wait: it is gone if it was seen before, else not there yet."""
    waits = [collective(rank) for rank in (0, 1, 3)]
    verdict = judge([waits])
    assert (verdict["kind"], verdict["certainty"], verdict["ranks"]) == ("starting", "likely", [2])
    assert "Trainer rank 2 is not there (yet): no such process was seen; Trainer ranks 0,1,3" in verdict["text"]
    verdict = judge([[*waits, process(2, *LOADING)], waits])
    assert (verdict["kind"], verdict["certainty"], verdict["ranks"]) == ("crashed-peer", "certain", [2])


def test_rank_whose_task_has_returned() -> None:
    """A rank that is idle while the others wait in a collective has skipped it."""
    idle = frame(RAY, 900, "Worker.main_loop"), frame("/x/ray/_private/workers/default_worker.py", 300, "<module>")
    verdict = judge([[*(collective(rank) for rank in (0, 1, 3)), process(2, *idle)]])
    assert (verdict["kind"], verdict["ranks"]) == ("missing-rank", [2])
    assert "rank 2 did not join all_reduce: it is idle, its task has returned;" in verdict["text"]


def test_all_ranks_in_one_collective() -> None:
    """Where all ranks wait in the same collective, the verdict says that none is missing."""
    verdict = judge([[collective(rank) for rank in range(4)]])
    assert verdict["kind"] == "unknown"
    assert verdict["text"].startswith("Trainer ranks 0-3 wait in all_reduce at /job/train.py:40 sync_grads; no rank")


def test_rank_that_does_not_join() -> None:
    """When processes wait for their group to start, the one elsewhere is named, although none knows its rank yet."""
    joins = [
        process(None, frame(TORCH, 1800, "init_process_group"), frame("/job/train.py", 9, "setup"), pid=pid)
        for pid in (1, 2)
    ]
    verdict = judge([[*joins, process(None, *LOADING, pid=3)]])
    assert (verdict["kind"], verdict["pids"]) == ("missing-rank", [3])
    assert verdict["text"] == (
        "Trainer (pid 3) did not join init_process_group: it is at /job/data.py:12 load;"
        " 2 processes of Trainer wait in init_process_group"
    )


def test_send_and_receive() -> None:
    """A rank that sends and one that receives are no mismatch."""
    verdict = judge([[collective(0, "send", world=2), collective(1, "recv", world=2)]])
    assert verdict["kind"] == "unknown"


def test_slow_collective() -> None:
    """Ranks that pass a collective again and again do not hang."""
    before = [collective(rank, line=40) for rank in range(4)]
    after = [collective(rank, line=41) for rank in range(4)]
    assert judge([before, after])["kind"] == "moving"
    waits = [*(collective(rank) for rank in (0, 1, 3)), process(2, *LOADING)]
    computes = [*waits[:3], process(2, frame("/job/data.py", 13, "load"))]
    assert judge([waits, computes])["kind"] == "moving", "the others wait for a slow rank"
    assert judge([waits, waits])["kind"] == "missing-rank"


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
            "backend": "gloo",
            "seq": seq,
            "op": op,
            "sizes": f"[{elements}]",
            "elements": elements,
            "dtypes": "Float",
            "done": done,
        }
        for seq, (op, elements, done) in enumerate(called, 1)
    ]
    group = {"name": name, "description": "default_pg", "rank": rank, "ranks": list(ranks), "calls": given}
    return {"collectives": [group], "world": len(ranks)}


DONE, WAITS = ("all_reduce", 1000, True), ("all_reduce", 1000, False)
TRAIN = frame("/job/train.py", 44, "sync_grads")


def test_recorded_mismatch() -> None:
    """A collective that differs on one rank is named with its number and group, also after it returned."""
    others = [collective(rank, **calls(rank, DONE, WAITS)) for rank in (0, 1)]
    odd = process(2, frame("/job/data.py", 12, "load"), **calls(2, DONE, ("broadcast", 4, True)))
    verdict = judge([[*others, odd]])
    assert (verdict["kind"], verdict["certainty"], verdict["ranks"]) == ("collective-mismatch", "certain", [2])
    assert verdict["next"] == "raydebug attach --pid 102"
    assert verdict["text"] == (
        "Trainer ranks 0-2 differ in collective 2 of group 0 default_pg gloo: rank 2 has called broadcast [4] Float,"
        " and is at /job/data.py:12 load; ranks 0,1 call all_reduce [1000] Float at /job/train.py:40 sync_grads"
    )
    within = judge([[*others, collective(2, "broadcast", 44, **calls(2, DONE, ("broadcast", 4, False)))]])
    assert "rank 2 calls broadcast [4] Float at /job/train.py:44 sync_grads; ranks 0,1" in within["text"]


def test_recorded_mismatch_of_two_ranks() -> None:
    """If two ranks differ, the one that is not rank 0 is named, and both calls are shown."""
    ranks = range(2)
    verdict = judge([[
        collective(0, **calls(0, DONE, WAITS, ranks=ranks)),
        collective(1, "all_gather", 50, **calls(1, DONE, ("allgather", 7, False), ranks=ranks)),
    ]])  # fmt: skip
    assert (verdict["kind"], verdict["ranks"]) == ("collective-mismatch", [1])
    assert "rank 1 calls allgather [7] Float at /job/train.py:50" in verdict["text"]
    assert "rank 0 calls all_reduce [1000] Float at /job/train.py:40" in verdict["text"]


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


def test_recorded_missing_rank() -> None:
    """A rank that has not called the collective of the others is named with its line, or as idle."""
    others = [collective(rank, **calls(rank, DONE, WAITS)) for rank in (0, 2)]
    look = [*others, process(1, *LOADING, **calls(1, DONE))]
    verdict = judge([look, look])
    assert (verdict["kind"], verdict["certainty"], verdict["ranks"]) == ("missing-rank", "certain", [1])
    assert judge([look])["certainty"] == "likely", "in one look it may be late"
    assert verdict["text"] == (
        "Trainer rank 1 did not join all_reduce [1000] Float: it is at /job/data.py:12 load; ranks 0,2 wait in"
        " collective 2 of group 0 default_pg gloo, all_reduce [1000] Float, at /job/train.py:40 sync_grads"
    )
    idle = frame(RAY, 900, "Worker.main_loop"), frame("/x/ray/_private/workers/default_worker.py", 300, "<module>")
    assert "it is idle, its task has returned" in judge([[*others, process(1, *idle, **calls(1, DONE))]])["text"]
    silent = process(1, state="silent", threads=[], **calls(1, DONE))
    assert "it does not answer" in judge([[*others, silent]])["text"]


def test_recorded_crash() -> None:
    """A rank of the group without a process is gone; not so if a process has no rank yet."""
    others = [collective(rank, **calls(rank, DONE, WAITS)) for rank in (0, 2)]
    verdict = judge([others])
    assert (verdict["kind"], verdict["certainty"], verdict["ranks"]) == ("crashed-peer", "certain", [1])
    assert "the process of Trainer rank 1 is gone; ranks 0,2 wait in collective 2" in verdict["text"]
    starts = process(None, *LOADING, pid=9)
    assert judge([[*others, starts]])["kind"] != "crashed-peer"


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
    """The verdict on ray.get depends on the state of the task that makes the object."""
    frames = (frame(RAY, 1000, "Worker.get_objects"), frame(RAY, 3000, "get"), frame("/job/main.py", 9, "<module>"))
    driver = process(None, *frames, role="driver", thread={"objects": ["ab" * 28]}, pid=8)
    critic = process(
        None, frame(QUEUE, 180, "Queue.get"), frame("/job/critic.py", 5, "fit"), role="Critic", pid=9, actor_id="c1"
    )
    name = "Critic.fit" if state == "RUNNING" else "Critic.status"
    task: Task = {"task_id": "ab" * 24, "name": name, "state": state, "actor_id": "c1", "pid": 9,
                  "needs": "8 GPUs"}  # fmt: skip
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
