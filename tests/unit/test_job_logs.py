"""Whose the files of a job are, which of their lines are wanted, and which error was first."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from raydebug.errors import RaydebugError
from raydebug.jobs.first_error import find_errors, judge_errors
from raydebug.jobs.follow import short_reason
from raydebug.jobs.logs import (
    Filter,
    Source,
    find_sources,
    of_node,
    rank_of,
    read_pattern,
    read_since,
    select_sources,
    stamp_of,
)

ACTOR = {"pid": 7, "class_name": "WorkerDict", "serialized_runtime_env": '{"env_vars": {"RANK": "3"}}'}
NAMES = [
    "job-driver-raydebug-1.log",
    "job-driver-raydebug-2.log",
    "worker-aa-02000000-7.err",
    "worker-aa-02000000-7.out",
    "worker-bb-02000000-9.out",
    "worker-cc-01000000-8.out",
    "worker-dd-ffffffff-6.out",
    "raylet.out",
    "old/",
]


def test_files_of_a_job():
    """A job has its driver's file and those of its workers, with role, rank and pid; another job's are left out."""
    found = of_node("n", NAMES, "raydebug-1", "02000000", {("n", 7): ACTOR})
    assert [(s.title, s.stream) for s in found] == [
        ("driver", "log"),
        ("WorkerDict rank 3", "err"),
        ("WorkerDict rank 3", "out"),
        ("task pid 9", "out"),
    ]
    assert [s.title for s in select_sources(found, "worker", None)] == ["WorkerDict rank 3"] * 2
    assert [s.title for s in select_sources(found, None, 3)] == ["WorkerDict rank 3"] * 2
    assert of_node("n", NAMES, "raydebug-1", "", {}) == [Source("n", "job-driver-raydebug-1.log", "driver")]


class TwoNodes:
    """Two nodes with a worker of the same pid; a third one without a file of the job."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = dict(zip(("aaaaaaaaaa", "bbbbbbbbbb", "cccccccccc"), addresses, strict=True))

    def nodes(self) -> list[dict[str, str]]:
        return [{"node_id": node, "node_ip": address} for node, address in self.addresses.items()]

    def actors(self, job_id: str) -> list[dict[str, object]]:
        return [{**ACTOR, "node_id": "bbbbbbbbbb"}]

    def log_names(self, node_id: str) -> list[str]:
        return {"aaaaaaaaaa": [NAMES[0], "worker-aa-02000000-7.out"], "bbbbbbbbbb": ["worker-bb-02000000-7.out"]}.get(
            node_id, []
        )


@pytest.mark.parametrize(
    ("addresses", "first", "second"),
    [
        (("10.0.0.1", "10.0.0.2", "10.0.0.3"), "10.0.0.1", "10.0.0.2"),
        (("127.0.0.1",) * 3, "aaaaaaaa", "bbbbbbbb"),
    ],
)
def test_files_of_several_nodes(addresses, first, second):
    """A job on several nodes has the node in each title; a pid names an actor of its own node only."""
    job = {"submission_id": "raydebug-1", "job_id": "02000000"}
    found = find_sources(TwoNodes(*addresses), job)
    titles = [f"driver on {first}", f"WorkerDict rank 3 on {second}", f"task pid 7 on {first}"]
    assert [source.title for source in found] == titles


def test_files_of_one_node():
    """A job whose files are on one node needs no node in their titles."""
    nodes = TwoNodes("10.0.0.1", "10.0.0.2", "10.0.0.3")
    nodes.addresses.pop("bbbbbbbbbb")
    found = find_sources(nodes, {"submission_id": "raydebug-1", "job_id": "02000000"})
    assert [source.title for source in found] == ["driver", "task pid 7"]


@pytest.mark.parametrize("runtime_env", [None, "", "{", "[]", '{"env_vars": null}', '{"env_vars": {"RANK": "x"}}'])
def test_actor_without_a_rank(runtime_env):
    """A runtime environment that names no rank gives none."""
    assert rank_of({"serialized_runtime_env": runtime_env}) is None
    assert rank_of(None) is None


def test_lines_that_are_wanted():
    """Ray's own tokens are left out; --since goes by the last time stamp, --grep by the line."""
    text = [":actor_name:WorkerDict", "start", "2026-11-21 19:00:00,1 old", "of it", "2026-11-21 20:00:00,1 loss 1"]
    assert list(Filter().lines(text)) == text[1:]
    late = Filter(since=datetime(2026, 11, 21, 19, 30, tzinfo=UTC), zone=UTC)
    assert list(late.lines(text)) == ["start", text[-1]]
    assert list(Filter(pattern=re.compile("loss")).lines(text)) == [text[-1]]
    state: dict[str, bool] = {}
    assert [list(late.lines([line], state)) for line in text] == [[], ["start"], [], [], [text[-1]]]


def test_times():
    """--since takes a span or a time, in UTC where it has no offset; nonsense is refused in three lines."""
    assert abs(read_since("10m") - (datetime.now(UTC) - timedelta(minutes=10))) < timedelta(seconds=5)
    moment = datetime(2026, 11, 21, 19, 41, 51, tzinfo=UTC)
    same = ("2026-11-21 19:41:51", "2026-11-21T19:41:51Z", "2026-11-21 21:41:51+02:00", "2026-11-21T15:11:51-04:30")
    assert [read_since(text) for text in same] == [moment] * 4
    for nonsense in ("yesterday", "9999999999999d", "12:00", ""):
        with pytest.raises(RaydebugError) as refused:
            read_since(nonsense)
        assert str(refused.value).count("\n") == 2
    with pytest.raises(RaydebugError, match="not a regular expression"):
        read_pattern("(")


def test_stamps(monkeypatch: pytest.MonkeyPatch):
    """A stamp is in its own offset, else in the zone of its node; one without a year is of the last twelve months."""
    moment = datetime(2026, 11, 21, 19, 41, 51, tzinfo=UTC)
    tokyo = timezone(timedelta(hours=9))
    assert stamp_of("2026-11-21 19:41:51,630 x", UTC) == moment
    assert stamp_of("[2026-11-22 04:41:51,630 x", tokyo) == moment
    assert stamp_of("2026-11-21T20:41:51.630+01:00 x", tokyo) == moment
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert stamp_of("2026-11-22 01:11:51,630 x") == moment
    finally:
        monkeypatch.undo()
        time.tzset()
    later = datetime.now(UTC) + timedelta(days=40)
    found = stamp_of(f"INFO {later:%m-%d} 19:41:51 [core.py:7] x", UTC)
    assert found is not None
    assert timedelta(days=200) < datetime.now(UTC) - found < timedelta(days=366)
    assert stamp_of("99-99 99:99:99") is None


def errors(text: str) -> list[str]:
    return [f"{error.title} | {error.who} | {error.place}" for error in find_errors("driver", text.splitlines())]


def test_plain_traceback():
    """A traceback is one error, with the innermost line that is the user's own."""
    text = """before
Traceback (most recent call last):
  File "/work/train.py", line 3, in main
    step()
  File "/venv/lib/python3.11/site-packages/verl/x.py", line 9, in step
    raise KeyError(name)
KeyError: 'raw_prompt'
after
"""
    assert errors(text) == ["KeyError: 'raw_prompt' | driver | /work/train.py:3"]


def test_error_that_travelled():
    """Of an error that two tasks handed on, the one that the innermost raised is reported, with its task and pid."""
    text = """Traceback (most recent call last):
  File "/work/train.py", line 30, in <module>
ray.exceptions.RayTaskError(ValueError): \x1b[36mray::Runner.run()\x1b[39m (pid=5, ip=10.0.0.1, actor_id=a)
  File "/work/train.py", line 12, in run
ray.exceptions.RayTaskError(ValueError): \x1b[36mray::WorkerDict.update()\x1b[39m (pid=6, ip=10.0.0.1, actor_id=b)
           ^^^^^^^^
  File "/work/train.py", line 9, in update
    raise ValueError("NaN at rank 1")
ValueError: NaN at rank 1
"""
    assert errors(text) == ["ValueError: NaN at rank 1 | WorkerDict.update, pid 6 | /work/train.py:9"]


def test_lines_of_several_processes_lie_between_one_another():
    """Prefixes tell whose a line is, doubled ones and a logger's own too."""
    text = """(A pid=1) Traceback (most recent call last):
(B pid=2) (EngineCore_DP0 pid=3) ERROR 11-21 19:41:51 [core.py:7] Traceback (most recent call last):
(A pid=1)   File "/work/a.py", line 1, in f
(B pid=2) (EngineCore_DP0 pid=3) ERROR 11-21 19:41:51 [core.py:7]   File "/work/b.py", line 2, in g
(A pid=1) RuntimeError: a
(B pid=2) (EngineCore_DP0 pid=3) ERROR 11-21 19:41:51 [core.py:7] ValueError: no KV cache
[rank0]: Traceback (most recent call last):
[rank0]:   File "/work/c.py", line 4, in h
[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB
"""
    assert errors(text) == [
        "RuntimeError: a | A, pid 1 | /work/a.py:1",
        "ValueError: no KV cache | EngineCore_DP0, pid 3 | /work/b.py:2",
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB | rank0 | /work/c.py:4",
    ]


def test_cause_before_what_follows_it():
    """Of a chain the cause is first; the ends of others, lost connections and the engine's front are a cascade."""
    text = """ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
Traceback (most recent call last):
  File "/work/a.py", line 1, in f
ValueError: No available memory for the cache blocks.

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/work/a.py", line 2, in g
RuntimeError: Engine core initialization failed. See root cause above.
ConnectionResetError: [Errno 104] Connection reset by peer
"""
    verdict = judge_errors(find_errors("driver", text.splitlines()))
    assert verdict.first is not None
    assert verdict.first.title == "ValueError: No available memory for the cache blocks."
    assert [error.kind for error in verdict.cascade] == ["ActorDiedError", "RuntimeError", "ConnectionResetError"]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Fatal Python error: Segmentation fault", "Fatal Python error"),
        ("*** SIGSEGV received at time=1 on cpu 6 ***", "*** SIGSEGV received"),
        ("(raylet) x.cc:3041: 1 Workers (tasks / actors) killed due to memory pressure (OOM) at", "OutOfMemory"),
        ("ModuleNotFoundError: No module named 'flash_attn'", "ModuleNotFoundError"),
    ],
)  # fmt: skip
def test_errors_of_one_line(line, kind):
    """Crashes, the raylet's memory monitor, and a traceback's last line without its beginning count too."""
    assert [error.kind for error in find_errors("driver", [line])] == [kind]


@pytest.mark.parametrize(
    "line",
    ["step:1 - loss:0.5", "WARNING: Error bars are off", "error_rate: 0.1", "ValueError", "no Error: here", "a: b"],
)
def test_what_is_no_error(line):
    """Words of healthy runs are no errors."""
    assert find_errors("driver", [line]) == []


def test_only_followers():
    """Where nobody tells a cause, the first that tells of an end is shown; without any error nothing is."""
    found = find_errors("driver", ["ray.exceptions.ActorDiedError: The actor died.", "EOFError: it closed"])
    verdict = judge_errors(found)
    assert verdict.first is found[0]
    assert judge_errors([]).first is None


def test_earliest_by_the_clock():
    """Where every cause has a time, the earliest is the first, whichever file it is in."""
    late = find_errors("a", ["ERROR 11-21 19:41:52 [x.py:1] ValueError: late"])
    early = find_errors("b", ["ERROR 11-21 19:41:51 [x.py:1] ValueError: early"])
    verdict = judge_errors([*late, *early])
    assert verdict.first is early[0]
    assert verdict.first.at == "11-21 19:41:51"


def test_endless_traceback():
    """A traceback that never ends is given up, and what comes after is read."""
    lines = ["Traceback (most recent call last):", *["  x"] * 100_000, "KeyError: 1", "ValueError: read"]
    assert [error.title for error in find_errors("driver", lines)] == ["KeyError: 1", "ValueError: read"]


ECHOES = """\
(RewardLoopWorker pid=1) Traceback (most recent call last):
(RewardLoopWorker pid=1)   File "/opt/venv/lib/python3.11/site-packages/verl/reward_loop.py", line 9, in f
(RewardLoopWorker pid=1)   File "/home/me/reward.py", line 2, in compute_score
(RewardLoopWorker pid=1) ValueError: no answer in it
(TaskRunnerV1 pid=2) Traceback (most recent call last):
(TaskRunnerV1 pid=2)   File "/opt/venv/lib/python3.11/site-packages/verl/replay_buffer.py", line 510, in f
(TaskRunnerV1 pid=2) RuntimeError: Sync replay buffer selected terminal groups with no materializable trajectories.
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/ray/_private/worker.py", line 1055, in get_objects
ray.exceptions.RayTaskError(RuntimeError): ray::TaskRunnerV1.run() (pid=2, ip=127.0.0.1)
  File "/opt/venv/lib/python3.11/site-packages/verl/replay_buffer.py", line 510, in f
RuntimeError: Sync replay buffer selected terminal groups with no materializable trajectories.
"""
CAUGHT = """\
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/other/optional.py", line 3, in <module>
ModuleNotFoundError: No module named 'optional'
(WorkerDict pid=3) Traceback (most recent call last):
(WorkerDict pid=3)   File "/opt/venv/lib/python3.11/site-packages/torch/nn.py", line 7, in forward
(WorkerDict pid=3) torch.OutOfMemoryError: CUDA out of memory.
ray.exceptions.RayTaskError(OutOfMemoryError): ray::WorkerDict.update() (pid=3, ip=127.0.0.1)
  File "/opt/venv/lib/python3.11/site-packages/torch/nn.py", line 7, in forward
torch.OutOfMemoryError: CUDA out of memory.
"""
ENGINE = """\
(EngineCore pid=5) ERROR 11-21 20:37:58 [core.py:700] Traceback (most recent call last):
(EngineCore pid=5) ERROR 11-21 20:37:58 [core.py:700]   File "/v/site-packages/vllm/v1/worker/utils.py", line 367, in f
(EngineCore pid=5) ERROR 11-21 20:37:58 [core.py:700] ValueError: No common block size for 7.
Traceback (most recent call last):
  File "/v/site-packages/vllm/v1/engine/core_client.py", line 1, in f
RuntimeError: Engine core initialization failed. See root cause above.
"""


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (ECHOES, ("ValueError: no answer in it", "/home/me/reward.py:2")),
        (
            CAUGHT,
            ("OutOfMemoryError: CUDA out of memory.", "/opt/venv/lib/python3.11/site-packages/torch/nn.py:7"),
        ),
        (ENGINE, ("ValueError: No common block size for 7.", "/v/site-packages/vllm/v1/worker/utils.py:367")),
        ("all is well\n", None),
    ],
    ids=["the user's own before its echoes", "what ended the job before what was caught", "the engine's own", "none"],
)
def test_first_cause(log: str, cause: tuple[str, str] | None) -> None:
    """Of all that a log reports, the exception that the others come of is named, with its line."""
    first = judge_errors(find_errors("driver", log.splitlines())).first
    assert (first and (first.title, first.place)) == cause


def test_reason_of_a_failed_job():
    """Of Ray's message the line with the reason is shown, also that of an actor that died; the log is not."""
    last = "last available logs (truncated to 20,000 chars):\nTraceback"
    assert short_reason("") == ""
    assert short_reason(f"Job entrypoint command failed with exit code 1, {last}") == (
        "Job entrypoint command failed with exit code 1"
    )
    died = "Job supervisor actor died: The actor died unexpectedly before finishing this task."
    reason = "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR"
    assert short_reason(died) == died
    assert short_reason(f"{died}\n\tclass_name: JobSupervisor\n\tpid: 7\n{reason}\nmore") == f"{died} {reason}"
