"""Who waits for whom, and the process at the end of the chain: on made-up stacks, without a job."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from test_stack_verdicts import IDLE, QUEUE, RAY, collective, frame, process

from raydebug.protocol.questions import TrainingWords
from raydebug.stacks.graph import Graph, Task
from raydebug.stacks.verdict import judge, judge_jobs

HTTP = "/usr/lib/python3.11/http/client.py"
THREADING = "/usr/lib/python3.11/threading.py"
POLL = "/venv/lib/python3.11/site-packages/zmq/sugar/poll.py"
QUEUES = "/venv/lib/python3.11/site-packages/vllm/distributed/device_communicators/shm_broadcast.py"
EXECUTOR = "/venv/lib/python3.11/site-packages/vllm/v1/executor/multiproc_executor.py"
SERVER = "/usr/lib/python3.11/socketserver.py"
MAIN = frame("/job/main.py", 9, "<module>")


def task(code: str, name: str, actor: str | None, state: str = "RUNNING", *, looks: int = 2, **facts: Any) -> Task:
    """Return an unfinished task of Ray; the ids of its objects begin with `code`."""
    return {"task_id": code * 24, "name": name, "state": state, "actor_id": actor, "pid": None, "needs": "1 GPU",
            "looks": looks, **facts}  # type: ignore[typeddict-item]  # fmt: skip


def driver(*codes: str, how: str = "get", pid: int = 8, **facts: Any) -> Any:
    """Return a driver that waits for the objects of tasks: in ray.get, or in a loop that sleeps."""
    objects = [code * 28 for code in codes]
    if how == "sleep":
        sleeps = {**frame("/job/main.py", 12, "poll"), "text": "time.sleep(0.5)"}
        return process(None, sleeps, MAIN, role="driver", pid=pid, thread={"polls": objects}, **facts)
    frames = frame(RAY, 1000, "Worker.get_objects"), frame(RAY, 3000, how), MAIN
    return process(None, *frames, role="driver", pid=pid, thread={"objects": objects}, **facts)


def actor(name: str, pid: int, *frames: dict[str, Any], **facts: Any) -> Any:
    """Return an actor whose id is its name."""
    return process(facts.pop("rank", None), *frames, role=name, pid=pid, actor_id=name, **facts)


def asks(name: str, pid: int, host: str = "10.0.0.9:8000", **facts: Any) -> Any:
    """Return an actor in a request to a server."""
    frames = frame(HTTP, 300, "HTTPResponse.begin"), frame("/job/reward.py", 30, "score")
    return actor(name, pid, *frames, thread={"host": host}, **facts)


STUCK = frame(THREADING, 327, "Condition.wait"), frame("/job/worker.py", 40, "Worker.train")


def test_chain_seen_twice() -> None:
    """A verdict is certain if each edge of the chain was observed in two looks, and likely after one."""
    look = [driver("ab"), asks("Reward", 9)]
    verdict = judge([look, look], [task("ab", "Reward.score", "Reward")])
    assert (verdict["kind"], verdict["certainty"], verdict["pids"][0]) == ("network", "certain", 9)
    assert verdict["text"] == (
        "Reward (pid 9) waits for an HTTP response from 10.0.0.9:8000 at /job/reward.py:30 score; driver (pid 8) waits"
        " for Reward.score"
    )
    assert [(one["pid"], one["kind"], one["waits_for"], one["looks"]) for one in verdict["chain"]] == [
        (8, "ray-get", "Reward.score", 2),
        (9, "network", "an HTTP response from 10.0.0.9:8000", 1),
    ]
    assert judge([look], [task("ab", "Reward.score", "Reward")])["certainty"] == "likely"
    assert judge([look, look], [task("ab", "Reward.score", "Reward", looks=1)])["certainty"] == "likely", "Ray is late"
    before = [driver("cd"), look[1]]
    assert judge([before, look], [task("ab", "Reward.score", "Reward")])["certainty"] == "likely", "another wait"


@pytest.mark.parametrize("order", [("wait", "sleep"), ("sleep", "wait"), ("get", "sleep")], ids="-".join)
def test_loop_that_polls(order: tuple[str, str]) -> None:
    """A driver that goes from ray.wait to sleep and back waits for what it polls, and does not move."""
    looks = [[driver("ab", how=how), actor("Worker", 9, *STUCK)] for how in order]
    verdict = judge(looks, [task("ab", "Worker.train", "Worker")])
    assert (verdict["kind"], verdict["certainty"], verdict["pids"][0]) == ("lock", "likely", 9), verdict["text"]
    assert [one["pid"] for one in verdict["chain"]] == [8, 9]


def test_loop_that_only_sleeps() -> None:
    """Objects in the locals of a loop that was never seen to ask for them make no verdict certain."""
    look = [driver("ab", how="sleep"), actor("Worker", 9, *STUCK)]
    verdict = judge([look, look], [task("ab", "Worker.train", "Worker")])
    assert (verdict["kind"], verdict["certainty"], verdict["pids"][0]) == ("lock", "likely", 9)


def test_barrier_that_is_polled() -> None:
    """Five of six ranks poll a barrier; the verdict is the sixth, with its host."""

    def ranks(sleeps: bool) -> list[Any]:
        poll = {**frame("/job/worker.py", 21, "work"), "text": "time.sleep(0.5)"}
        wait = frame(RAY, 1000, "Worker.get_objects"), frame(RAY, 3000, "get"), frame("/job/worker.py", 20, "work")
        polls = [actor(f"Worker {n}", 20 + n, *((poll,) if sleeps else wait), rank=n) for n in range(5)]
        return [driver("a0", "a1", "a2", "a3", "a4", "a5"), *polls, asks("Worker 5", 25, rank=5),
                actor("Barrier", 30, *IDLE)]  # fmt: skip

    tasks = [task(f"a{n}", "Worker.work", f"Worker {n}") for n in range(6)]
    for looks in ([ranks(True)], [ranks(True), ranks(False)]):
        verdict = judge(looks, tasks)
        assert (verdict["kind"], verdict["ranks"], verdict["pids"]) == ("network", [5], [25]), verdict["text"]
        assert "from 10.0.0.9:8000" in verdict["text"]


def test_mover_among_those_that_are_waited_for() -> None:
    """Where one of those that the driver waits for moves, and the other too, the job moves; else the standing one."""
    computes = [actor("Other", 7, frame("/job/x.py", line, "crunch")) for line in (1, 2)]
    tasks = [task("ab", "Worker.train", "Worker"), task("cd", "Other.crunch", "Other")]
    stands = [[driver("ab", "cd"), actor("Worker", 9, frame("/job/y.py", 5, "train")), one] for one in computes]
    moves = [[driver("cd"), one, actor("Worker", 9, *IDLE)] for one in computes]
    assert judge(moves, tasks)["kind"] == "moving"
    assert judge(moves, tasks)["certainty"] == "certain"
    verdict = judge(stands, tasks)
    assert (verdict["kind"], verdict["certainty"], verdict["pids"][0]) == ("unknown", "likely", 9)
    beside = [[driver("ab"), actor("Worker", 9, *STUCK), one] for one in computes]
    assert judge(beside, tasks)["pids"][0] == 9, "nobody waits for the one that moves"


def test_one_call_that_does_not_return() -> None:
    """A process that has been in one call for long is named with it and its age, although its lines move."""

    def look(line: int) -> list[Any]:
        call = {"thread": "MainThread", "function": "compute_score", "file": "/job/r.py", "line": 1, "age_s": 700.0}
        return [driver("ab"), actor("RewardWorker", 9, frame("/job/r.py", line, "compute_score"), calls=[call])]

    verdict = judge([look(1), look(2)], [task("ab", "RewardWorker.compute_score", "RewardWorker")])
    assert (verdict["kind"], verdict["call_age_s"], verdict["pids"]) == ("computes", 700.0, [9])
    assert verdict["text"] == (
        "RewardWorker (pid 9) computes at /job/r.py:2 compute_score, in one call of compute_score for 700 s; driver"
        " (pid 8) waits for RewardWorker.compute_score"
    )


def test_server_of_the_job() -> None:
    """A request to a port on which a process of the job listens leads to the thread that handles it."""
    handler = frame(HTTP, 300, "HTTPResponse.begin"), frame("/job/server.py", 5, "do_POST"), frame(SERVER, 9, "handle")
    server = actor("Server", 10, *IDLE, listens=[8000])
    server["threads"].append({"name": "Thread-2", "frames": list(handler), "host": "10.0.0.7:443"})
    look = [driver("ab"), asks("Reward", 9, "10.0.0.1:8000"), server]
    verdict = judge([look, look], [task("ab", "Reward.score", "Reward")])
    assert (verdict["kind"], verdict["certainty"], verdict["pids"][0]) == ("network", "certain", 10), verdict
    assert "Server (pid 10) waits for an HTTP response from 10.0.0.7:443 at /job/server.py:5 do_POST" in verdict["text"]
    elsewhere = [*look[:2], {**server, "ip": "10.0.0.2"}]
    assert judge([elsewhere], [task("ab", "Reward.score", "Reward")])["pids"][0] == 9


def test_threads_children_and_pipes() -> None:
    """A chain leads through futures of the same process, child processes and pipes."""
    waits = actor("Worker", 9, frame(THREADING, 1100, "Thread.join"), frame("/job/w.py", 5, "run"))
    waits["threads"][0]["awaits"] = ["0x1"]
    child = frame("/usr/lib/python3.11/subprocess.py", 1200, "Popen.wait"), frame("/job/w.py", 9, "fetch")
    waits["threads"].append({"name": "fetcher", "frames": list(child), "holds": ["0x1"], "child": 11})
    made = process(None, frame("/usr/lib/python3.11/multiprocessing/connection.py", 380, "Connection._recv"),
                   frame("/job/c.py", 3, "read"), role="python", pid=11, child_of=9,
                   thread={"pipe": 77}, pipes=[77])  # fmt: skip
    writer = process(None, frame("/job/p.py", 4, "produce"), role="python", pid=12, pipes=[77])
    look = [driver("ab"), waits, made, writer]
    verdict = judge([look, look], [task("ab", "Worker.run", "Worker")])
    assert [one["pid"] for one in verdict["chain"]] == [8, 9, 9, 11, 12]
    assert (verdict["pids"][0], verdict["certainty"]) == (12, "likely"), "others have the pipe open, too"


@pytest.mark.parametrize(
    ("state", "frames", "kind"),
    [("SUBMITTED_TO_WORKER", (frame(QUEUE, 1, "Queue.get"), frame("/job/a.py", 3, "Async.many")), "queue"),
     ("SUBMITTED_TO_WORKER", (frame(QUEUE, 1, "Queue.get"), frame("/job/a.py", 3, "Async.other")), "mailbox")],
)  # fmt: skip
def test_ray_is_late(state: str, frames: tuple[Any, ...], kind: str) -> None:
    """A call that Ray has in a mailbox, while its method is on the actor's stack, runs."""
    look = [driver("ab"), actor("Async", 9, *frames)]
    assert judge([look], [task("ab", "Async.many", "Async", state, looks=1)])["kind"] == kind
    assert judge([look], [task("ab", "Async.many", "Async", state, looks=1)])["certainty"] == "likely"


def test_tasks_without_a_process() -> None:
    """A task whose process is gone, one that waits for its arguments, and one whose actor has no node."""
    gone = judge([[driver("ab")]], [task("ab", "work", None, pid=55, node_id="n")])
    assert gone["kind"] == "gone", gone
    assert "waits for work, but its process (pid 55) is gone, or has" in gone["text"]
    tasks = [task("ab", "join", None, "PENDING_ARGS_AVAIL"), task("cd", "Worker.train", "Worker")]
    arguments = judge([[driver("ab"), actor("Worker", 9, *STUCK)]], tasks)
    assert (arguments["kind"], arguments["pids"][0], arguments["certainty"]) == ("lock", 9, "likely")
    tasks = [task("ab", "Big.train", "Big", "PENDING_NODE_ASSIGNMENT"),
             task("cd", "Big.__init__", "Big", "PENDING_NODE_ASSIGNMENT", type="ACTOR_CREATION_TASK")]  # fmt: skip
    unplaced = judge([[driver("ab")]] * 2, tasks)
    assert (unplaced["kind"], unplaced["certainty"]) == ("ray-get", "certain")
    assert "waits for task Big.__init__, for which no node has room: it needs 1 GPU" in unplaced["text"]


def test_silent_actor_that_has_not_said_who_it_is() -> None:
    """An actor that has never answered is found by the process that Ray's task has."""
    silent = process(None, state="silent", actor_id=None, role="Actor", threads=[], pid=12, stopped=True, node_id=None)
    look = [driver("ab"), silent]
    verdict = judge([look, look], [task("ab", "Actor.hold", "a1", pid=12, node_id="n")])
    assert (verdict["kind"], verdict["certainty"], verdict["chain"][0]["pid"]) == ("stopped", "certain", 8)


@pytest.mark.parametrize(
    ("facts", "kind", "words"),
    [({"stopped": True}, "stopped", "is stopped: by SIGSTOP"),
     ({"asleep": "rpc_wait"}, "disk", "is asleep in the kernel in rpc_wait (state D"),
     ({"gone": True}, "gone", "is gone: its node has no process 103"),
     ({"unread": "kernel.yama.ptrace_scope is 1"}, "gil", "could not be read: kernel.yama.ptrace_scope is 1")],
)  # fmt: skip
def test_silent_rank(facts: dict[str, Any], kind: str, words: str) -> None:
    """A rank that does not answer is named, with what its node says of it."""
    silent = process(3, state="silent", actor_id="Trainer 3", **{**facts, "threads": []})
    look = [driver("a0", "a3"), process(0, *STUCK, actor_id="Trainer 0"), silent]
    verdict = judge([look, look], [task(f"a{n}", "Trainer.train", f"Trainer {n}") for n in (0, 3)])
    assert (verdict["kind"], verdict["ranks"]) == (kind, [3]), verdict
    assert verdict["text"].startswith("Trainer rank 3 ")
    assert words in verdict["text"]


def test_words_of_the_training() -> None:
    """A trainer that polls its samples is explained by the sample, and by the process of the job that it waits for."""
    sleeps = {**frame("/env/lib/python3.11/site-packages/verl/replay_buffer.py", 392, "wait"), "text": "time.sleep(1)"}
    look = [driver("ab"), actor("TaskRunner", 9, sleeps)]
    words: dict[str, TrainingWords] = {"9": {
        "step": 12, "phase": "gen", "samples_total": 3,
        "samples": [{"uid": "u7", "state": "running", "turn": 2, "tool": "search", "url": "http://10.0.0.1:7000/q",
                     "age_s": 700.0}],
    }}  # fmt: skip
    tasks = [task("ab", "TaskRunner.run", "TaskRunner")]
    verdict = judge([look], tasks, words)
    text = "; step 12, phase gen; 3 samples are running for 700 s: u7, turn 2, tool search at http://10.0.0.1:7000/q"
    assert text in verdict["text"]
    assert (verdict["kind"], verdict["certainty"], verdict["pids"][0]) == ("training", "likely", 9)
    agent = asks("AgentWorker", 11)
    known: TrainingWords = {"samples": [{"uid": "u7", "state": "tool_calls", "tool": "search"}]}
    verdict = judge([[*look, agent]], tasks, {**words, "11": known})
    assert (verdict["kind"], verdict["pids"][0], verdict["chain"][1]["waits_for"]) == ("network", 11, "sample u7")
    tool = actor("Tool", 10, frame(QUEUE, 1, "Queue.get"), frame(SERVER, 3, "serve_forever"), listens=[7000])
    assert judge([[*look, tool]], tasks, words)["pids"][0] == 10
    synced = judge([look], tasks, {"9": {"sync": {"side": "trainer", "missing": "rollout", "age_s": 40.0}}})
    assert "a weight sync has not ended, the rollout has not joined for 40 s" in synced["text"]
    scored = judge([look], tasks, {"9": {"rewards": [{"data_source": "gsm8k", "function": "score", "age_s": 9.0}]}})
    assert "the reward score for data source gsm8k has not returned for 9 s" in scored["text"]


def test_request_without_an_answer() -> None:
    """A process that waits for its vLLM engine leads to the engine, by the request or as its child."""
    waits = frame("/env/lib/python3.11/site-packages/vllm/v1/engine/core_client.py", 9, "get_output_async")
    engine = process(None, frame("/job/e.py", 5, "step"), role="VLLM::EngineCore", pid=10, child_of=9)
    look = [driver("ab"), actor("Rollout", 9, waits), engine]
    tasks = [task("ab", "Rollout.generate", "Rollout")]
    assert judge([look], tasks)["pids"][0] == 10
    other = [*look[:2], {**engine, "child_of": None}]
    words: dict[str, TrainingWords] = {"9": {"requests": [{"id": "req-3", "engine": 10}]}}
    verdict = judge([other], tasks, words)
    assert (verdict["pids"][0], verdict["chain"][1]["waits_for"]) == (10, "request req-3")


def test_same_process_id_on_two_nodes() -> None:
    """Containers number their processes alike: words and requests belong to the process of their own node."""
    waits = frame("/env/lib/python3.11/site-packages/vllm/v1/engine/core_client.py", 9, "get_output_async")
    engine = process(None, frame("/job/e.py", 5, "step"), role="VLLM::EngineCore", pid=10, ip="10.0.0.2", node_id="n2")
    far = {**actor("Other", 9, *STUCK), "instance": "far", "ip": "10.0.0.2", "node_id": "n2"}
    look = [driver("ab"), actor("Rollout", 9, waits), far, engine]
    words: dict[str, TrainingWords] = {"9": {"requests": [{"id": "req-3", "engine": 10}]}, "far": {"step": 4}}
    graph = Graph(look, [task("ab", "Rollout.generate", "Rollout")], words)
    assert [graph.words_of(one) for one in look[1:3]] == [words["9"], words["far"]]
    assert graph.edges(graph.node(look[1])) == []


@pytest.mark.parametrize("how", ["words", "creation", "imports"])
def test_start(how: str) -> None:
    """A verdict taken during a start says so, with the phase."""
    loads = frame("/job/model.py", 5, "load")
    imports = frame("/job/deep.py", 1, "<module>"), frame("<frozen importlib._bootstrap>", 1176, "_find_and_load")
    look = [driver("ab"), actor("Worker", 9, *(imports if how == "imports" else (loads,)))]
    kind = "ACTOR_CREATION_TASK" if how == "creation" else "ACTOR_TASK"
    words: dict[str, TrainingWords] = {"9": {"starting": True, "phase": "load weights"}} if how == "words" else {}
    verdict = judge([look], [task("ab", "Worker.__init__", "Worker", type=kind)], words)
    phase = {"words": "load weights", "creation": "Worker.__init__", "imports": "it imports modules"}[how]
    assert (verdict["kind"], verdict["pids"]) == ("starting", [9])
    assert verdict["text"].startswith(f"the job is starting ({phase}): Worker (pid 9) is at ")


def test_sync_between_roles() -> None:
    """In a group of ray.util.collective a member of another role that has not called is missing."""
    file = "/env/lib/python3.11/site-packages/ray/util/collective/collective.py"

    def member(rank: int, *, calls: bool) -> dict[str, Any]:
        call = [{"backend": "", "seq": 1, "op": "broadcast", "done": False}] if calls else []
        return {"collectives": [{"name": "sync", "description": "ray.util.collective", "rank": rank, "ranks": [0, 1],
                                 "calls": call}]}  # fmt: skip

    rollout = actor(
        "Rollout", 9, frame(file, 430, "broadcast"), frame("/job/r.py", 3, "update"), **member(1, calls=True)
    )
    trainer = asks("Trainer", 10, **member(0, calls=False))
    look = [driver("ab", "cd"), rollout, trainer]
    tasks = [task("ab", "Rollout.update", "Rollout"), task("cd", "Trainer.sync", "Trainer")]
    verdict = judge([look, look], tasks)
    assert (verdict["kind"], verdict["certainty"], verdict["pids"]) == ("missing-rank", "certain", [10]), verdict
    assert "did not join broadcast" in verdict["text"]
    assert "waiting for an HTTP response from 10.0.0.9:8000" in verdict["text"]


def test_missing_rank_that_waits_itself() -> None:
    """A rank that is missing from a collective because it waits for another process is not the end of the chain."""
    late = process(1, frame(RAY, 1000, "get_objects"), frame(RAY, 3000, "get"), frame("/job/t.py", 5, "score"),
                   actor_id="t1", thread={"objects": ["ab" * 28]})  # fmt: skip
    look = [collective(0, world=2), {**late, "world": 2}, asks("Reward", 9)]
    verdict = judge([look, look], [task("ab", "Reward.score", "Reward")])
    assert (verdict["kind"], verdict["pids"], verdict["ranks"]) == ("missing-rank", [9, 101], [1])
    assert [one["pid"] for one in verdict["chain"]] == [100, 101, 9]


def test_idle_rank_is_not_the_cause() -> None:
    """Ranks that wait for the next task in a collective are no cause while the driver waits for something else."""
    look = [driver("ab"), asks("Reward", 9), collective(1, world=2), process(0, *IDLE, world=2)]
    verdict = judge([look], [task("ab", "Reward.score", "Reward")])
    assert (verdict["kind"], verdict["pids"][0]) == ("network", 9)


@pytest.mark.parametrize(
    ("how", "kind", "steps", "words"),
    [
        ("barrier", "network", 2, "planted.py:70 Actor.reward; driver (pid "),
        ("wait_and_sleep", "lock", 2, "planted.py:87 Actor.train; driver (pid "),
        ("poll_status", "lock", 2, "Actor worker (pid "),
        ("replay_buffer", "network", 1, "Actor agent-worker (pid "),
        ("gil_of_rank", "gil", 2, "Actor rank 2 is not answering: native code holds Python's lock (GIL)"),
        ("disk", "disk", 2, "is asleep in the kernel in kernel_clone (state D"),
        ("server", "network", 3, "Handler.do_GET; Actor (pid "),
        ("pool", "network", 3, "planted.py:70 Actor.reward; driver (pid "),
        ("forked", "network", 3, "waits for a process that it started (pid "),
        ("async_many", "lock", 2, "planted.py:200 AsyncActor.many; driver (pid "),
        ("async_chain", "network", 4, "; AsyncActor (pid "),
        ("endless_reward", "unknown", 2, "; driver (pid "),
    ],
)  # fmt: skip
def test_recorded_waits(how: str, kind: str, steps: int, words: str) -> None:
    """The verdicts on stacks and tasks that tests/ray/test_stacks.py recorded with Ray 2.60 (tests/jobs/hangs)."""
    recorded = json.loads((Path(__file__).parent / "recorded_waits.json").read_text(encoding="utf-8"))[how]
    verdict = judge([recorded["processes"]], recorded["tasks"])
    assert (verdict["kind"], len(verdict["chain"])) == (kind, steps), verdict
    assert words in verdict["text"]
    assert verdict["pids"][0] == verdict["chain"][-1]["pid"]


def test_two_jobs() -> None:
    """Each job has its verdict, the one that hangs first; a pause of one decides nothing for the other."""
    paused = {**driver(pid=1), "job": "paused", "pauses": ["7"]}
    hangs = [{**one, "job": "hangs"} for one in (driver("ab"), asks("Reward", 9))]
    found = judge_jobs([[paused, *hangs]], [task("ab", "Reward.score", "Reward")])
    assert [(one["job"], one["kind"]) for one in found] == [("hangs", "network"), ("paused", "paused")]


def test_a_thousand_actors() -> None:
    """The one of a thousand actors that stands is found, also where all poll one another's objects."""
    codes = [f"{number:04x}" for number in range(1000)]
    tasks: list[Task] = [{**task("ab", "Worker.train", f"w{n}"), "task_id": codes[n] * 12} for n in range(1000)]
    everything = [code * 14 for code in codes]
    sleeps = {**frame("/job/w.py", 7, "train"), "text": "time.sleep(1)"}
    actors = [{**actor("Worker", 100 + n, sleeps), "actor_id": f"w{n}"} for n in range(1000)]
    actors[777] = {**asks("Worker", 877), "actor_id": "w777"}
    main = driver()
    main["threads"][0]["objects"] = everything
    verdict = judge([[main, *actors]] * 2, tasks)
    assert (verdict["pids"][0], verdict["certainty"]) == (877, "certain")
    for one in actors[:10]:
        one["threads"][0]["polls"] = everything
    assert judge([[main, *actors]], tasks)["pids"]


def test_many_waits() -> None:
    """Many tasks that wait for their arguments, and many actors that wait for many others, take less than seconds."""
    codes = [f"{number:04x}" for number in range(4000)]
    waiting: list[Task] = [{**task("ab", "join", None, "PENDING_ARGS_AVAIL"), "task_id": one * 12} for one in codes]
    main = driver()
    main["threads"][0]["objects"] = [one * 14 for one in codes]
    graph = Graph([main, actor("Worker", 9, *STUCK)], [*waiting, task("cd", "Worker.train", "Worker")])
    assert len(graph.edges(graph.node(main))) == 1
    waits = frame(RAY, 1000, "Worker.get_objects"), frame(RAY, 3000, "get")
    dense = [
        actor(f"w{n}", 100 + n, *waits, thread={"objects": [one * 14 for one in codes[n + 1 : 180]]})
        for n in range(180)
    ]
    tasks: list[Task] = [{**task("ab", "Worker.train", f"w{n}"), "task_id": codes[n] * 12} for n in range(180)]
    began_s = time.process_time()
    judge([dense], tasks)
    assert time.process_time() - began_s < 6


def test_thread_at_the_end_moves() -> None:
    """Movement is that of the thread at the end of the chain: the main thread stands and waits for it."""

    def look(line: int, name: str = "pool_0") -> list[Any]:
        waits = actor("Worker", 9, frame(THREADING, 1100, "Thread.join"), frame("/job/w.py", 5, "run"))
        waits["threads"][0]["awaits"] = ["0x1"]
        waits["threads"].append({"name": name, "frames": [frame("/job/w.py", line, "score")], "holds": ["0x1"]})
        return [driver("ab"), waits]

    tasks = [task("ab", "Worker.run", "Worker")]
    assert judge([look(1), look(2)], tasks)["kind"] == "moving"
    assert judge([look(1), look(1)], tasks)["kind"] == "unknown"
    assert judge([look(1, "task 1"), look(1, "task 2")], tasks)["kind"] == "moving", "another task than before"


def test_tasks_of_one_name() -> None:
    """Tasks of asyncio with one name are told apart: the one that is stuck is found among those that sleep."""
    worker = actor("Agent", 9, frame("/usr/lib/python3.11/asyncio/base_events.py", 1, "run_forever"))
    gathers = {"name": "task all", "frames": [frame("/job/a.py", 1, "Agent.generate")], "awaits": ["0x1", "0x2"]}
    sleeps = {
        "name": "task sample",
        "holds": ["0x1"],
        "frames": [frame("/usr/lib/python3.11/asyncio/tasks.py", 9, "sleep"), frame("/job/a.py", 2, "retry")],
    }
    stuck = {"name": "task sample", "holds": ["0x2"], "host": "10.0.0.9:80",
             "frames": [frame("/env/lib/python3.11/site-packages/aiohttp/client.py", 9, "ClientSession._request"),
                        frame("/job/a.py", 3, "call_tool")]}  # fmt: skip
    worker["threads"] += [gathers, sleeps, stuck]
    look = [driver("ab"), worker]
    verdict = judge([look, look], [task("ab", "Agent.generate", "Agent")])
    assert (verdict["kind"], verdict["certainty"]) == ("network", "certain")
    assert "from 10.0.0.9:80 at /job/a.py:3 call_tool; driver (pid 8) waits for Agent.generate" in verdict["text"]


SELECTS = frame("/usr/lib/python3.11/selectors.py", 415, "EpollSelector.select")
RUNS = frame(THREADING, 982, "Thread.run"), frame(THREADING, 1045, "Thread._bootstrap_inner")
RUNNER = "/usr/lib/python3.11/asyncio/runners.py"


@pytest.mark.parametrize(
    ("name", "loop"),
    [("AsyncIO Thread: default", RUNS), ("MainThread", (frame(RUNNER, 118, "Runner.run"), MAIN))],
    ids=["async actor", "uvloop.run"],
)
def test_uvloop(name: str, loop: tuple[Any, ...]) -> None:
    """A loop of uvloop has no frame of its own: its tasks count; without one, an async actor is idle."""
    agent = actor("Agent", 9, *loop, thread={"name": name})
    if loop is RUNS:
        assert judge([[driver("ab", how="sleep"), agent]] * 2)["pids"] == [8]
    request = frame("/env/lib/python3.11/site-packages/aiohttp/client.py", 9, "ClientSession._request")
    calls = frame("/env/lib/python3.11/site-packages/verl/agent_loop.py", 50, "AgentLoopWorker.call_tool")
    for own in (calls, frame("/job/a.py", 3, "call_tool")):
        stuck = {"name": "task Task-1", "frames": [request, own], "host": "10.0.0.9:80"}
        look = [driver("ab"), {**agent, "threads": [*agent["threads"], stuck]}]
        if loop is RUNS or own is not calls:
            assert judge([look], [task("ab", "Agent.generate", "Agent")])["kind"] == "network"


LIBRARY = "/usr/lib/python3.11/"


@pytest.mark.parametrize(
    "frames",
    [
        (frame(THREADING, 331, "Condition.wait"), frame(THREADING, 629, "Event.wait"),
         frame(f"{LIBRARY}multiprocessing/managers.py", 180, "Server.serve_forever")),
        (SELECTS, frame(SERVER, 235, "BaseServer.serve_forever")),
        (frame(f"{LIBRARY}socket.py", 294, "socket.accept"),),
        (frame(f"{LIBRARY}multiprocessing/connection.py", 216, "_ConnectionBase.recv_bytes"),
         frame(f"{LIBRARY}multiprocessing/queues.py", 365, "SimpleQueue.get"),
         frame(f"{LIBRARY}multiprocessing/pool.py", 114, "worker")),
        (SELECTS, frame(f"{LIBRARY}asyncio/base_events.py", 1, "_run_once"), frame(RUNNER, 118, "Runner.run"),
         frame("/env/lib/python3.11/site-packages/uvicorn/server.py", 67, "Server.run")),
    ],
    ids=["manager", "socketserver", "accept", "pool", "uvicorn"],
)  # fmt: skip
def test_idle_server_is_not_blamed(frames: tuple[Any, ...]) -> None:
    """A server or a worker of a pool that has nothing to do is not why a driver stands whose wait is not known."""
    server = process(None, *frames, frame("/job/tool.py", 30, "main"), role="python", pid=20, child_of=8)
    for waits in (driver("ab", how="sleep"), process(None, frame(QUEUE, 1, "Queue.get"), MAIN, role="driver", pid=8)):
        assert judge([[waits, server]] * 2)["pids"] == [8]


def test_task_named_run() -> None:
    """A task is in a function of its name, not in the `run` that each thread has; at best in one of its whole name."""
    monitor = {"name": "Thread-1", "frames": [frame("/v/site-packages/tqdm/_monitor.py", 60, "TMonitor.run"), RUNS[1]]}
    helper = {"name": "Thread-2", "frames": [frame("/job/a.py", 8, "Other.run"), *RUNS]}
    runner = asks("Runner", 9)
    waits = {**runner["threads"][0], "name": "task Task-1"}
    waits["frames"] = [*waits["frames"], frame("/job/a.py", 5, "Runner.run")]
    loop = {"name": "AsyncIO Thread: default", "frames": [SELECTS, *RUNS]}
    look = [driver("ab"), {**runner, "threads": [loop, monitor, helper, waits]}]
    assert judge([look], [task("ab", "Runner.run", "Runner")])["kind"] == "network"
    look = [driver("ab"), {**runner, "threads": [*runner["threads"], monitor, {"name": "loop", "frames": [*RUNS]}]}]
    assert judge([look], [task("ab", "Runner.run", "Runner", "SUBMITTED_TO_WORKER")])["kind"] == "mailbox"


def test_what_was_seen_once_is_not_certain() -> None:
    """A process that was silent in the first look, or is in another call now, was not seen to stand."""
    tasks = [task("ab", "Reward.score", "Reward")]
    silent = process(None, role="Reward", pid=9, actor_id="Reward", state="silent")
    before = {**silent, "threads": []}
    assert judge([[driver("ab"), before], [driver("ab"), asks("Reward", 9)]], tasks)["certainty"] == "likely"

    def look(age_s: float) -> list[Any]:
        call = {"thread": "MainThread", "function": "score", "file": "/job/r.py", "line": 30, "age_s": age_s}
        return [driver("ab"), asks("Reward", 9, calls=[call])]

    assert judge([look(0.0), look(2.0)], tasks)["certainty"] == "certain"
    verdict = judge([look(0.0), look(0.1)], tasks)
    assert (verdict["kind"], verdict["certainty"]) == ("moving", "likely"), "a call that began after the first look"


def test_words_of_a_training_are_likely_in_one_look() -> None:
    """What a training says that it waits for is certain if the process stood there in two looks."""
    sleeps = {**frame("/v/site-packages/verl/replay_buffer.py", 392, "sample"), "text": "time.sleep(1)"}
    look = [process(None, sleeps, MAIN, role="driver", pid=8)]
    words: dict[str, TrainingWords] = {"8": {"samples": [{"uid": "u7", "state": "running"}]}}
    assert [judge([look] * looks, [], words)["certainty"] for looks in (1, 2)] == ["likely", "certain"]
    moved = [process(None, sleeps, frame("/job/main.py", 12, "<module>"), role="driver", pid=8)]
    assert judge([moved, look], [], words)["certainty"] == "likely"


@pytest.mark.parametrize("how", ["stands", "in turns", "async", "threads"])
def test_actors_that_ask_one_another(how: str) -> None:
    """Two actors deadlock if they were in this wait before, and the call that is queued cannot begin."""

    def look(code: str) -> list[Any]:
        executes = frame("/x/ray/_private/function_manager.py", 700, "actor_method_executor")
        waits = frame(RAY, 1000, "Worker.get_objects"), frame(RAY, 3000, "get")
        one = actor("A", 9, *waits, frame("/job/a.py", 5, "A.run"), executes, thread={"objects": ["cc" * 28]})
        other = actor("B", 10, *waits, frame("/job/b.py", 3, "B.work"), thread={"objects": [code * 28]})
        if how == "async":
            one["threads"] = [{"name": "AsyncIO Thread: default", "frames": [SELECTS, *RUNS]},
                              {**one["threads"][0], "name": "task Task-3"}]  # fmt: skip
        if how == "threads":
            one["threads"].append({"name": "Dummy-2", "frames": [frame("/job/a.py", 9, "A.serve"), executes]})
        return [driver("ab"), one, other]

    tasks = [task("ab", "A.run", "A"), task("cc", "B.work", "B"), task("d1", "A.status", "A", "SUBMITTED_TO_WORKER")]
    verdict = judge([look("d0" if how == "in turns" else "d1"), look("d1")], tasks)
    assert (verdict["kind"] == "deadlock") == (how == "stands"), verdict
    assert verdict["certainty"] == ("certain" if how == "stands" else "likely")
    assert verdict["kind"] != "none"


@pytest.mark.parametrize("is_threaded", [False, True])
def test_actor_that_asks_itself(is_threaded: bool) -> None:
    """An actor that waits for a call of its own method waits for ever, unless another thread of it takes the call."""
    executes = frame("/x/ray/_private/function_manager.py", 700, "actor_method_executor")
    waits = frame(RAY, 1000, "Worker.get_objects"), frame(RAY, 3000, "get")
    own = actor("A", 9, *waits, frame("/job/a.py", 5, "A.outer"), executes, thread={"objects": ["d1" * 28]})
    if is_threaded:
        own["threads"].append({"name": "Dummy-2", "frames": [frame("/job/a.py", 9, "A.serve"), executes]})
    look = [driver("ab"), own]
    tasks = [task("ab", "A.outer", "A"), task("d1", "A.inner", "A", "SUBMITTED_TO_WORKER")]
    verdict = judge([look, look], tasks)
    assert (verdict["kind"] == "deadlock") != is_threaded, verdict
    if not is_threaded:
        assert verdict["text"].startswith(
            "A (pid 9) waits at /job/a.py:5 A.outer for A.inner, which waits in the mailbox"
        )


@pytest.mark.parametrize("cpu_s", [0.0, 2.0])
def test_lock_beside_a_thread_that_works(cpu_s: float) -> None:
    """Who waits for a lock while another thread of the process computes may wait for that one: nothing hangs."""

    def look(before_s: float) -> list[Any]:
        waits = process(None, *STUCK, role="driver", pid=8)
        waits["threads"].append({"name": "maker", "frames": [frame("/job/m.py", 3, "make")], "cpu_s": before_s})
        return [waits]

    verdict = judge([look(0.0), look(cpu_s)])
    assert (verdict["kind"], verdict["certainty"]) == ("moving" if cpu_s else "lock", "likely")
    assert (
        "now at /job/m.py:3 make; a lock or an event (wait) is waited for at /job/worker.py:40" in verdict["text"]
    ) == bool(cpu_s)
    assert [link["at"] for link in verdict["chain"]][1:] == (["/job/m.py:3 make"] if cpu_s else [])


def test_message_that_is_lost() -> None:
    """An engine and its worker that wait for each other on vLLM's queues: the wait is a queue, and the message lost."""

    def reads(name: str, own: int, *files: int, at: str, **facts: Any) -> Any:
        frames = [frame(QUEUES, 806, "MessageQueue.acquire_read"), frame(QUEUES, 900, "MessageQueue.dequeue")]
        shown = process(None, frame(POLL, 106, "Poller.poll"), *frames, frame(EXECUTOR, 9, at), role=name, **facts)
        shown["threads"][0]["pipe"] = own
        return {**shown, "pipes": list(files)}

    engine = reads("VLLM::EngineCore", -7, -7, -9, at="get_response", pid=11, child_of=9)
    worker = reads("RayWorkerProc", -9, -7, -9, at="worker_busy_loop", pid=12)
    child = frame("/usr/lib/python3.11/multiprocessing/popen_fork.py", 28, "Popen.poll")
    server = actor("EngineServer", 9, child, frame("/job/serve.py", 40, "generate"), thread={"child": 11})
    look = [driver("ab"), server, engine, worker]
    verdict = judge([look, look], [task("ab", "EngineServer.generate", "EngineServer")])
    assert [link["pid"] for link in verdict["chain"]] == [8, 9, 11, 12]
    assert (verdict["kind"], verdict["certainty"]) == ("queue", "likely")
    assert "RayWorkerProc (pid 12) waits for a message of vLLM's queue" in verdict["text"]
    assert "each of the last two waits for the other: what one of them has sent is lost" in verdict["text"]


def test_server_with_several_handlers() -> None:
    """Nobody knows which handler of a server has a request: where there are several, the verdict is likely."""
    waits = frame(HTTP, 300, "HTTPResponse.begin"), frame("/job/server.py", 5, "do_POST"), frame(SERVER, 9, "handle")
    handlers = [{"name": f"Thread-{n}", "frames": list(waits), "host": "10.0.0.7:443"} for n in (2, 3)]
    for many, certainty in ((1, "certain"), (2, "likely")):
        server = actor("Server", 10, *IDLE, listens=[8000])
        look = [driver("ab"), asks("Reward", 9, "10.0.0.1:8000"), server]
        server["threads"] += handlers[:many]
        verdict = judge([look, look], [task("ab", "Reward.score", "Reward")])
        assert (verdict["pids"][0], verdict["certainty"]) == (10, certainty)
