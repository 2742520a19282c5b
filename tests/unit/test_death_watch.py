"""The watch of a job's ends: what it asks of Ray, when it certifies, and what it says of a run."""

from __future__ import annotations

import time
from typing import Any

import pytest

from raydebug.errors import RaydebugError
from raydebug.jobs import deaths
from raydebug.jobs.deaths import DeathWatch

FACTS = {"oom_kills": 0, "node_oom_kills": 0}


class Rows:
    """A dashboard with a row in some tables, which may be slow to learn of an end."""

    def __init__(self, **rows: Any) -> None:
        self.rows = rows

    def job(self, _job: str) -> Any:
        return {"job_id": "01000000", "status": "RUNNING"}

    def row_of(self, table: str, *_filters: object) -> Any:
        if self.rows.get(table) == "fails":
            raise RaydebugError("no answer", cause="it is gone", fix="wait", code="x.y")
        return self.rows.get(table)

    def log_end(self, _node: str, name: str, _lines: int) -> str:
        assert name.startswith("worker-w1-01000000-")
        return "*** SIGSEGV received at time=1 on cpu 0 ***\n"


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A watch of a job with one end, of a Ray worker."""
    one = {"number": 1, "at": time.time(), "pid": 7, "ip": "n", "worker_id": "w1", "birth": FACTS, "node": FACTS}
    one |= {"words": {}, "fault": "", "kill": {}}
    ended = [one]
    monkeypatch.setattr(deaths, "fetch_deaths", lambda _cluster, _job: [dict(each) for each in ended])
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
    assert [one.after for one in watch.take(Rows(workers={"exit_type": None}), last=True)] == ["a process"]


def test_a_gateway_of_an_earlier_version_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /deaths there are no certificates."""

    def refuse(_cluster: Any, _job: str) -> Any:
        raise RaydebugError("not found", cause="no such page", fix="none", code="x.y")

    monkeypatch.setattr(deaths, "fetch_deaths", refuse)
    assert DeathWatch(None, "j", lambda _pid: (0, "", None)).take(Rows()) == []  # type: ignore[arg-type]
