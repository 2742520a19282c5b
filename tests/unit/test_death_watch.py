"""The watch of a job's ends: what it asks of Ray, when it certifies, and what it says of a run."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import SimpleNamespace
from typing import Any

import pytest

from raydebug.errors import RaydebugError
from raydebug.jobs import deaths
from raydebug.jobs.certificate import BACK, Certificate
from raydebug.jobs.deaths import DeathWatch
from raydebug.jobs.follow import _say_deaths

FACTS = {"oom_kills": 0, "node_oom_kills": 0}


class Rows:
    """A dashboard with a row in some tables, which may be slow to learn of an end."""

    def __init__(self, **rows: Any) -> None:
        self.rows = rows
        self.asked: list[str] = []

    def job(self, _job: str) -> Any:
        self.asked.append("job")
        return {"job_id": "01000000", "status": "RUNNING"}

    def row_of(self, table: str, *_filters: object, fits: Any = bool) -> Any:
        self.asked.append(table)
        if self.rows.get(table) == "fails":
            raise RaydebugError("no answer", cause="it is gone", fix="wait", code="x.y")
        row = self.rows.get(table)
        return row if row and fits(row) else None

    def log_end(self, _node: str, name: str, _lines: int) -> str:
        assert name.startswith("worker-w1-01000000-")
        return "[2026-11-26 06:28:17,886 E 7 7] logging.cc:474: *** SIGSEGV received at time=1 on cpu 0 ***\n"


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A watch of a job with one end, of a Ray worker."""
    one = {"number": 1, "at": time.time(), "pid": 7, "ip": "n", "worker_id": "w1", "birth": FACTS, "node": FACTS}
    one |= {"words": {}, "fault": "", "kill": {}}
    ended = [one]
    monkeypatch.setattr(
        deaths,
        "fetch_deaths",
        lambda _cluster, _job, after: [dict(each) for each in ended if each["number"] > after or each.get("is_back")],
    )
    watch = DeathWatch(None, "j", lambda _pid: (3 * 2**30, "training", 12))  # type: ignore[arg-type]
    return watch, ended


def test_an_end_is_certified_once_ray_knows_of_it(watched: Any) -> None:
    """The watch waits for Ray's row of a worker, and says each end once, with what the process held and did."""
    watch, _ = watched
    assert watch.take(Rows(workers={"exit_type": None})) == []
    row = {"exit_type": "SYSTEM_ERROR", "exit_detail": "Worker unexpectedly exits"}
    (found,) = watch.take(Rows(workers=row, tasks={"name": "WorkerDict.update_actor", "actor_id": "a"},
                               actors={"class_name": "WorkerDict"}))  # fmt: skip
    assert (
        found.text == "SIGSEGV of its own code ended WorkerDict pid 7 (invalid memory access, in update_actor, step 12)"
    )
    assert watch.take(Rows(workers=row)) == []


def test_an_end_is_certified_without_ray_too(watched: Any) -> None:
    """A Ray that does not answer holds up a certificate for 1.5 s only, and a last look holds it up not at all."""
    watch, ended = watched
    gone = Rows(workers="fails", tasks="fails", actors="fails", nodes="fails")
    assert watch.take(gone) == []
    ended[0]["at"] -= 2
    assert [one.pid for one in watch.take(gone)] == [7]
    ended.append({**ended[0], "number": 2, "at": time.time(), "pid": 8})
    assert [one.after for one in watch.take(Rows(workers={"exit_type": None}), last=True)] == ["process"]


def test_an_odd_end_keeps_no_other_from_its_certificate(watched: Any) -> None:
    """What a gateway of another version, or a process, says of an end in another form costs it its certificate."""
    watch, ended = watched
    ended.append({**ended[0], "number": 2, "at": time.time() - 2})
    ended.append({**ended[0], "number": 3, "at": time.time() - 2, "node": {**FACTS, "raylet": "9" * 300}})
    ended[0]["at"] = None
    assert [one.number for one in watch.take(Rows(workers="fails"))] == [2]
    assert watch.take(Rows(workers="fails"), last=True) == []


def test_what_is_said_of_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """Five ends are said, then that there are more; a process that is connected again is said always."""

    def certificate(number: int, kind: str = "killed") -> Certificate:
        return Certificate(number, "Actor", number, "n", 0.0, kind, by="somebody", how="SIGKILL")

    certificates = {n: certificate(n) for n in range(4)}
    recorder: Any = SimpleNamespace(deaths=SimpleNamespace(certificates=certificates, unsaid=[]))
    back = [certificate(n, BACK) for n in (8, 9)]
    _say_deaths(recorder, [*back, *certificates.values()])
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == [f"death: Actor pid {n} has not ended: it is connected again" for n in (8, 9)]
    assert len(said) == 6
    certificates |= {n: certificate(n) for n in range(4, 8)}
    _say_deaths(recorder, [certificates[n] for n in range(4, 8)])
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(" (")[0] for line in said] == [
        "death: somebody ended Actor pid 4", "death: more processes have ended; `raydebug diagnose` lists them"
    ]  # fmt: skip


@pytest.mark.parametrize(("ago_s", "is_said"), [(40.0, True), (3.0, False)])
async def test_ends_near_the_end_of_a_job(watched: Any, ago_s: float, is_said: bool) -> None:
    """An end is said once the job has gone on after it, or has failed; what ends with a good job is no death."""
    (watch, ended), said = watched, []
    ended[0]["at"] -= ago_s
    watch._cluster = SimpleNamespace(least_poll_s=0.0, is_joined=False)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            await watch.watch(Rows(), said.extend)
    assert [one.kind for one in said] == ["sigsegv"] * is_said
    unsaid = [*watch.unsaid]
    assert (watch.at_end(Rows(), has_failed=False), len(watch.certificates)) == ([], is_said)
    watch.unsaid = unsaid
    assert watch.at_end(Rows(), has_failed=True) == unsaid


@pytest.mark.parametrize(
    ("ended", "node", "is_certified"),
    [({}, "ALIVE", False), ({"status": 9}, "ALIVE", True), ({"words": {"how": "exit"}}, "ALIVE", True),
     ({"alone": True}, "ALIVE", True), ({}, "DEAD", True), ({"at": 40}, "ALIVE", True)],
)  # fmt: skip
def test_a_process_that_lives_is_not_certified(watched: Any, ended: Any, node: str, is_certified: bool) -> None:
    """While Ray says that a silent process lives, and other processes of its node answer, it may connect again."""
    watch, (one,) = watched
    one |= {**ended, "at": time.time() - ended.get("at", 3)}
    watch.take(Rows(workers={"is_alive": True, "exit_type": None}, nodes={"state": node}))
    assert (one["number"] in watch._judged) is is_certified


def test_a_certificate_is_withdrawn(watched: Any) -> None:
    """A process that connects again has not ended, and the record of the run has no certificate of it."""
    watch, ended = watched
    ended[0]["at"] -= 3
    assert len(watch.take(Rows())) == len(watch.certificates) == 1
    ended[0]["is_back"] = True
    assert [one.text for one in watch.take(Rows())] == ["process pid 7 has not ended: it is connected again"]
    assert watch.take(Rows()) == []
    assert watch.certificates == {}


@pytest.mark.parametrize(
    ("end_time_ms", "ip", "kind"),
    [(1000, "n", "sigkill"), (0, "n", "sigkill"), (None, "n", "ray-oom"), (None, "another", "sigkill")],
)
def test_a_row_of_another_process_with_its_id(watched: Any, end_time_ms: int | None, ip: str, kind: str) -> None:
    """A process whose id in Ray is unknown has the row of a worker of its node with its pid that ended when it did."""
    watch, ended = watched
    ended[0] |= {"worker_id": None, "status": 9}
    row = {"exit_type": "NODE_OUT_OF_MEMORY", "node_id": "n", "ip": ip, "worker_id": "w1"}
    row["end_time_ms"] = int(ended[0]["at"] * 1000) if end_time_ms is None else end_time_ms  # type: ignore[assignment]
    assert [one.kind for one in watch.take(Rows(workers=row))] == [kind]


def test_ordinary_ends_cost_one_request(watched: Any) -> None:
    """Of a worker that Ray had no more use for, only its row is asked for, and ends that are judged are not listed."""
    watch, ended = watched
    ended[:] = [{**ended[0], "number": number, "status": 0} for number in range(5, 15)]
    rows = Rows(workers={"exit_type": "INTENDED_SYSTEM_EXIT", "exit_detail": "Worker exits because it is idle"})
    assert watch.take(rows) == []
    assert rows.asked == ["job", *["workers"] * 10]
    assert watch._after == 14
    ended.append({**ended[0], "number": 15, "at": time.time()})
    assert watch.take(Rows(workers={"exit_type": None})) == []
    assert watch._after == 14


def test_a_gateway_of_an_earlier_version_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /deaths there are no certificates."""

    def refuse(_cluster: Any, _job: str, _after: int) -> Any:
        raise RaydebugError("not found", cause="no such page", fix="none", code="x.y")

    monkeypatch.setattr(deaths, "fetch_deaths", refuse)
    assert DeathWatch(None, "j", lambda _pid: (0, "", None)).take(Rows()) == []  # type: ignore[arg-type]
