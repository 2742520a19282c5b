"""Whose the files of a job are, which of their lines are wanted, and why a job failed by Ray's words."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raydebug.cli import job
from raydebug.cluster.state import Cluster
from raydebug.errors import Exit, RaydebugError
from raydebug.jobs.follow import short_reason
from raydebug.jobs.logs import (
    Filter,
    Source,
    find_sources,
    follow_lines,
    rank_of,
    read_pattern,
    read_since,
    select_sources,
    stamp_of,
)
from raydebug.runs.folder import RunFolder

ACTOR = {"pid": 7, "class_name": "WorkerDict", "serialized_runtime_env": '{"env_vars": {"RANK": "3"}}'}
NAMES = [
    "job-driver-raydebug-1.log", "job-driver-raydebug-2.log", "worker-aa-02000000-7.err", "worker-aa-02000000-7.out",
    "worker-bb-02000000-9.out", "worker-cc-01000000-8.out", "worker-dd-ffffffff-6.out", "raylet.out", "old/",
]  # fmt: skip


def test_files_of_a_job():
    """A job has its driver's file and those of its workers, with role, rank and pid; another job's are left out."""
    dashboard: Any = SimpleNamespace(
        actors=lambda _: [{**ACTOR, "node_id": "n"}],
        nodes=lambda: [{"node_id": "n", "node_ip": "10.0.0.1"}],
        log_names=lambda _: NAMES,
    )
    job: Any = {"submission_id": "raydebug-1", "job_id": "02000000"}
    found = find_sources(dashboard, job)
    assert [f"{s.title}, {s.stream}" for s in found] == [
        *("driver, log", "WorkerDict rank 3, err", "WorkerDict rank 3, out", "task pid 9, out"),
    ]  # fmt: skip
    assert [s.title for s in select_sources(found, "worker", None)] == ["WorkerDict rank 3"] * 2
    assert [s.title for s in select_sources(found, None, 3)] == ["WorkerDict rank 3"] * 2
    begins = find_sources(dashboard, {**job, "job_id": None})
    assert begins == [Source("n", "job-driver-raydebug-1.log", "driver")]


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


MINE = Cluster("mine", "c", "joined", Path(), Path(), "")
ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")


@pytest.mark.parametrize(
    ("addresses", "first", "second"),
    [(ADDRESSES, *ADDRESSES[:2]), (("127.0.0.1",) * 3, "aaaaaaaa", "bbbbbbbb")],
)
def test_files_of_several_nodes(addresses, first, second):
    """A job on several nodes has the node in each title; a pid names an actor of its own node only.

    One whose files are on one node needs no node in their titles.
    """
    job, nodes = {"submission_id": "raydebug-1", "job_id": "02000000"}, TwoNodes(*addresses)
    found = find_sources(nodes, job)
    titles = [f"driver on {first}", f"WorkerDict rank 3 on {second}", f"task pid 7 on {first}"]
    assert [source.title for source in found] == titles
    nodes.addresses.pop("bbbbbbbbbb")
    assert [source.title for source in find_sources(nodes, job)] == ["driver", "task pid 7"]


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
    assert timedelta(days=200) < datetime.now(UTC) - found < timedelta(days=366)
    assert stamp_of("99-99 99:99:99") is None


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


def test_a_followed_log_has_each_line_once():
    """What a log has after the last piece is added at its end; a progress bar, of many CRs, is one line."""
    source = Source("n", "10.0.0.1", "job-driver-x.log", "driver", None, 7)
    bar = "".join(f"{part}%\r" for part in range(0, 100, 20))

    class Logs:
        async def follow_file(self, node_id: str, name: str) -> AsyncIterator[str]:
            yield f"2026-11-22 10:00:00,000 old\nmore of it\n{bar}done\n2026-11-22 12:00:00,000 st"

        def log_text(self, node_id: str, name: str) -> str:
            return f"2026-11-22 10:00:00,000 old\nmore of it\n{bar}done\n2026-11-22 12:00:00,000 step 1\nstep 2\n"

    def followed(**wanted: Any) -> list[str]:
        lines: list[str] = []
        looks = iter([False, True])
        asyncio.run(
            follow_lines(
                Logs(), lambda: [source], lambda: next(looks), lambda _, line: lines.append(line), Filter(**wanted)
            )
        )
        return lines

    since = datetime(2026, 11, 22, 11, tzinfo=UTC)
    assert followed(since=since, zone=UTC) == ["2026-11-22 12:00:00,000 step 1", "step 2"]
    assert followed(zone=UTC) == Logs().log_text("n", "").removesuffix("\n").split("\n")


def test_stop_of_a_job_that_does_not_end(monkeypatch: pytest.MonkeyPatch):
    """`job stop` of a job that runs on is a timeout, not a success."""
    asked: list[str] = []
    monkeypatch.setattr(job, "_dashboard", lambda _: SimpleNamespace(stop_job=asked.append, cluster=MINE))
    monkeypatch.setattr(job, "_find", lambda *_, **__: {"submission_id": "j", "status": "RUNNING"})
    monkeypatch.setattr(job, "_has_ended", lambda *_: False)
    monkeypatch.setattr(job, "STOP_S", 0.0)
    with pytest.raises(RaydebugError) as late:
        job.stop("j", "mine")
    assert (asked, late.value.code, late.value.exit_code) == (["j"], "job.timeout", Exit.TIMEOUT)
    assert "`raydebug job list`" in late.value.fix


@pytest.mark.parametrize(
    ("ids", "own"),
    [
        (["raydebug-1", "alice-training"], "raydebug-1"),
        (["raydebug-1", "raydebug-of-bob"], "raydebug-1"),
        (["raydebug-of-bob", "alice-training"], None),
        (["alice-training"], None),
    ],
)
def test_the_last_job_is_this_users(ids: list[str], own: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without an id a job verb takes the last job that was submitted from here, and nobody else's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    RunFolder("raydebug-1")
    jobs = [{"submission_id": each, "status": "RUNNING"} for each in ids]
    stops: list[str] = []
    dashboard: Any = SimpleNamespace(cluster=MINE, submitted_jobs=lambda: jobs, job=lambda each: {"status": "RUNNING"})
    dashboard.stop_job = stops.append
    monkeypatch.setattr(job, "_dashboard", lambda _: dashboard)
    monkeypatch.setattr(job, "STOP_S", 0.0)
    with pytest.raises(RaydebugError) as refused:
        job.stop(None, "mine")
    assert stops == ([own] if own else [])
    if own:
        assert job._find(dashboard, None)["submission_id"] == own
    else:
        assert refused.value.code == "job.not-ours"
        assert all(each in refused.value.cause for each in ids)
