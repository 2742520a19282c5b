"""Following a job: without an output, to the end of its record, and only once."""

from __future__ import annotations

import asyncio
import doctest
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import pexpect
import pytest

from ray_dashboard import JOB, RayDashboard
from raydebug.cluster.dashboard import Dashboard
from raydebug.cluster.state import Cluster, Remote
from raydebug.errors import RaydebugError
from raydebug.jobs import resource_requests, submit
from raydebug.jobs.deaths import DeathWatch
from raydebug.jobs.follow import Explanation, _explained, _what_becomes_of
from raydebug.jobs.follower import DEMAND_AT_MOST_S, DEMAND_POLL_S, Follower
from raydebug.jobs.pace import MOST_S, Pace
from raydebug.jobs.patience import Patience

FOLLOW = ("-m", "raydebug", "job", "logs", "-f", JOB)
LOST = f"note: standard output is lost (%s); job {JOB} is followed without it\n"


@pytest.fixture
def dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayDashboard]:
    """A cluster with one job, which runs; it is the cluster around this test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with RayDashboard(tmp_path) as started:
        for name, value in started.environment.items():
            monkeypatch.setenv(name, value)
        yield started


def follow(stdout: int | IO[Any] = subprocess.PIPE, stderr: int | IO[Any] = subprocess.PIPE) -> subprocess.Popen[str]:
    argv = [sys.executable, *FOLLOW]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, text=True)


def first_line(follower: subprocess.Popen[str]) -> str:
    assert follower.stdout is not None
    return follower.stdout.readline()


def recorded(tmp_path: Path) -> tuple[str, int | None, str]:
    """Return status and exit code of the record, and the recorded log."""
    folder = tmp_path / "raydebug" / "runs" / JOB
    document = json.loads((folder / "run.json").read_text())
    return document["status"], document["exit_code"], (folder / "job.log").read_text()


def test_reader_that_leaves(dashboard: RayDashboard, tmp_path: Path) -> None:
    """`job logs -f | head -1` follows the job to its end: the job's exit code, the outcome, a whole record."""
    dashboard.print("line 1\n")
    follower = follow()
    assert first_line(follower) == "line 1\n"
    assert follower.stdout is not None
    assert follower.stderr is not None
    follower.stdout.close()
    dashboard.print("line 2\n")
    assert follower.stderr.readline() == LOST % "Broken pipe"
    dashboard.print("line 3\n")
    dashboard.end(3)
    said = follower.stderr.read()
    assert follower.wait() == 3
    assert said.startswith(f"job {JOB} failed: Job entrypoint command failed with exit code 3\n")
    assert recorded(tmp_path) == ("failed", 3, "line 1\nline 2\nline 3\n")


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 3])
def test_device_that_is_full(dashboard: RayDashboard, tmp_path: Path, code: int) -> None:
    """A full device takes neither the log nor the outcome; exit code and record are the job's."""
    dashboard.print("line 1\n")
    dashboard.end(code)
    with Path("/dev/full").open("w") as full:
        alone = follow(stdout=full)
        said = alone.communicate()[1]
        assert (alone.returncode, said.startswith(LOST % "No space left on device")) == (code, True)
        assert ("succeeded" if code == 0 else "failed") in said
        assert recorded(tmp_path) == ("failed" if code else "succeeded", code, "line 1\n")
        assert follow(stdout=full, stderr=full).wait() == code


def test_closed_streams(dashboard: RayDashboard) -> None:
    """Without standard streams a job is followed too."""
    dashboard.print("line 1\n")
    dashboard.end(3)
    line = f"{sys.executable} {' '.join(FOLLOW)} <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", line], check=False).returncode == 3


def test_a_byte_that_is_not_utf8(dashboard: RayDashboard, tmp_path: Path) -> None:
    """A log goes on after a byte that is not UTF-8, at which Ray ends its stream; the byte is replaced."""
    dashboard.print("line 1\n")
    follower = follow()
    assert first_line(follower) == "line 1\n"
    dashboard.print("caf\udce9\n")
    dashboard.print("line 3\n")
    assert [first_line(follower) for _ in range(2)] == ["caf\ufffd\n", "line 3\n"]
    dashboard.print("line 4\n")
    dashboard.end(3)
    assert follower.communicate()[0] == "line 4\n"
    assert recorded(tmp_path) == ("failed", 3, "line 1\ncaf\ufffd\nline 3\nline 4\n")


@pytest.mark.parametrize(
    "verb", [["job", "logs", "-f", JOB], ["job", "wait", JOB], ["job", "logs", "-f", JOB, "--grep", "."]]
)
def test_a_dashboard_that_is_away(dashboard: RayDashboard, verb: list[str]) -> None:
    """What waits for a job waits on while the dashboard is away, and says so; the job's code is returned."""
    dashboard.print("line 1\n")
    argv = [sys.executable, "-m", "raydebug", *verb]
    follower = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert follower.stderr is not None
    if "logs" in verb:
        assert first_line(follower) == "line 1\n"
    else:
        assert follower.stderr.readline() == f"waits for the end of job {JOB} ...\n"
    with dashboard.away():
        while "Ray's dashboard does not answer" not in follower.stderr.readline():
            assert follower.poll() is None
    dashboard.print("line 2\n")
    dashboard.end(3)
    out, said = follower.communicate(timeout=30)
    assert "Ray's dashboard answers again" in said
    if "--grep" not in verb:
        assert follower.returncode == 3
    if "logs" in verb:
        assert out == "line 2\n"


@pytest.mark.parametrize("verb", ["job stop", "job wait", "job logs", "diagnose"])
def test_an_id_that_is_none(dashboard: RayDashboard, verb: str) -> None:
    """Whatever is given as a job's id, the dashboard is asked for that job alone, and the error has three lines."""
    for given in ("x\x1b]0;PWN\x07", "../../api/v0/tasks", "a?b#c", "caf\udce9"):
        argv = [sys.executable, "-m", "raydebug", *verb.split(), given]
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
        assert "itself failed" not in done.stderr, done.stderr
        assert done.stderr.startswith("error: "), done.stderr
    assert dashboard.stops == 0


TRACEBACK = """\
Traceback (most recent call last):
  File "/w/train.py", line 9, in update
    scale = 1 / spread
ZeroDivisionError: division by zero
"""


def test_the_end_of_a_failed_run(dashboard: RayDashboard, tmp_path: Path) -> None:
    """What failed, where, its line of source and the next command are the last lines; on a terminal in colour."""
    dashboard.print(TRACEBACK)
    dashboard.end(1)
    said = follow().communicate()[1]
    end = (
        f"job {JOB} failed: Job entrypoint command failed with exit code 1\n"
        "ZeroDivisionError: division by zero\n  raised by driver, at /w/train.py:9\n    scale = 1 / spread\n"
        "next: raydebug diagnose\n"
    )
    assert said == end
    shutil.rmtree(tmp_path / "raydebug")
    child = pexpect.spawn(sys.executable, [*FOLLOW], encoding="utf-8", timeout=20, env={**os.environ, "TERM": "xterm"})
    child.expect(pexpect.EOF)
    *_, job, what, _, _, step = child.before.replace("\r", "").splitlines()
    assert job.startswith("\x1b[1;31mjob ")
    assert what == "\x1b[1;31mZeroDivisionError: division by zero\x1b[0m"
    assert step == "\x1b[1mnext: raydebug diagnose\x1b[0m"


def test_ctrl_c_while_the_end_is_explained(dashboard: RayDashboard) -> None:
    """After the job's end Ctrl-C leaves with the job's code, whatever is still asked of a dashboard that hangs."""
    dashboard.hangs_at_end = True
    argv = ["env", "--default-signal=INT", sys.executable, *FOLLOW]
    follower = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert follower.stderr is not None
    dashboard.end(3)
    assert any(" failed: " in line for line in follower.stderr)
    follower.send_signal(signal.SIGINT)
    said = follower.communicate(timeout=8)[1]
    assert (follower.returncode, "next: raydebug diagnose" in said) == (3, True)


def test_a_head_that_takes_no_job_yet(dashboard: RayDashboard, tmp_path: Path) -> None:
    """A job is submitted again while Ray says that no agent takes it yet."""
    dashboard.has_agent = False
    there = Cluster("mine", "c", "joined", tmp_path, tmp_path, "", {"dashboard": dashboard.port})
    assert Dashboard(there).submit_job("true", submission_id=JOB, env={}) == JOB


def test_no_patience_with_a_cluster_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dashboard that is away is waited for, unless the supervisor that keeps it has ended."""
    passed = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: passed)
    cluster = Cluster("mine", "c", "local", tmp_path, tmp_path, "")
    patience = Patience(cluster, "Ray's dashboard", "wait for it again")
    away = RaydebugError("it does not answer", cause="refused", fix="", code="cluster.no-answer")
    patience.failed(away)
    passed = 4.0
    with pytest.raises(RaydebugError, match="cluster 'mine' has ended") as ended:
        patience.failed(away)
    assert "its supervisor is gone" in ended.value.cause


def test_follow_again(dashboard: RayDashboard, tmp_path: Path) -> None:
    """A second follow of a job shows its log again, and leaves its record as it is."""
    dashboard.print("line 1\n")
    dashboard.end(0)
    shown = [follow().communicate()[0]]
    before = (tmp_path / "raydebug" / "runs" / JOB / "run.json").read_bytes()
    shown.append(follow().communicate()[0])
    assert shown == ["line 1\n", "line 1\n"]
    assert recorded(tmp_path)[2] == "line 1\n"
    assert (tmp_path / "raydebug" / "runs" / JOB / "run.json").read_bytes() == before


def test_two_followers(dashboard: RayDashboard, tmp_path: Path) -> None:
    """Of two processes that follow a job at a time, the first one records it."""
    dashboard.print("line 1\n")
    followers = [follow()]
    assert first_line(followers[0]) == "line 1\n"
    followers.append(follow())
    assert first_line(followers[1]) == "line 1\n"
    dashboard.print("line 2\n")
    dashboard.end(0)
    assert [one.communicate()[0] for one in followers] == ["line 2\n", "line 2\n"]
    assert recorded(tmp_path) == ("succeeded", 0, "line 1\nline 2\n")


@pytest.mark.parametrize(("number", "stops"), [(signal.SIGINT, 1), (signal.SIGTERM, 0), (signal.SIGHUP, 0)])
def test_follower_that_is_ended(dashboard: RayDashboard, tmp_path: Path, number: signal.Signals, stops: int) -> None:
    """Ctrl-C without a terminal stops the job, SIGTERM and SIGHUP leave it running; the record says `interrupted`."""
    dashboard.print("line 1\n")
    follower = follow()
    assert first_line(follower) == "line 1\n"
    follower.send_signal(number)
    _, said = follower.communicate()
    assert follower.returncode == 128 + number
    assert said == (f"stopping job {JOB}\n" if stops else f"job {JOB} continues\n")
    assert dashboard.stops == stops
    assert recorded(tmp_path) == ("interrupted", 130, "line 1\n")
    listed = subprocess.run([sys.executable, "-m", "raydebug", "report", "--list"], capture_output=True, text=True)
    assert re.search(rf"{JOB} +interrupted ", listed.stdout)


def test_interrupted_follow_is_taken_up(dashboard: RayDashboard, tmp_path: Path) -> None:
    """The job of an interrupted follow can be followed again, and is then recorded from its beginning to its end."""
    dashboard.print("line 1\n")
    follower = follow()
    assert first_line(follower) == "line 1\n"
    follower.terminate()
    follower.communicate()
    dashboard.print("line 2\n")
    dashboard.end(0)
    assert follow().communicate()[0] == "line 1\nline 2\n"
    assert recorded(tmp_path) == ("succeeded", 0, "line 1\nline 2\n")


def test_nohup(dashboard: RayDashboard) -> None:
    """Under nohup, SIGHUP does not end the follow."""
    dashboard.print("line 1\n")
    argv = ["nohup", sys.executable, *FOLLOW]
    follower = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert first_line(follower) == "line 1\n"
    follower.send_signal(signal.SIGHUP)
    dashboard.end(0)
    assert follower.wait() == 0


@pytest.mark.parametrize(("answer", "stops"), [("\x03", 1), ("y\n", 1), ("n\n", 0), ("wait\nn\n", 0)])
def test_ctrl_c_at_a_terminal(dashboard: RayDashboard, tmp_path: Path, answer: str, stops: int) -> None:
    """Ctrl-C asks whether to stop the job; a second Ctrl-C stops it, another word asks again."""
    dashboard.print("line 1\n")
    child = pexpect.spawn(sys.executable, [*FOLLOW], encoding="utf-8", timeout=20, env={**os.environ})
    child.expect("line 1")
    child.sendintr()
    child.expect_exact("stop the job? [Y/n] ")
    child.send(answer)
    child.expect_exact(f"stopping job {JOB}" if stops else f"job {JOB} continues")
    child.expect(pexpect.EOF)
    child.close()
    assert (child.exitstatus, dashboard.stops) == (130, stops)
    assert recorded(tmp_path)[0] == "interrupted"


def test_lines_of_other_programs() -> None:
    """The line of a job that another program submitted may be no whole shell: it has words all the same."""
    assert doctest.testmod(submit).failed == 0
    assert submit.folder_of("echo it's && exec python x.py") is None


@pytest.mark.parametrize(
    ("owner", "expected"),
    [(0, "job j continues"), (4711, "job j ends with cluster 'x', unless another `run` uses that cluster")],
)
def test_job_that_is_followed_no_longer(owner: int, expected: str) -> None:
    """A job continues without its follower, but on a cluster that a `run` has started, which ends with that."""
    here = Path()
    cluster = Cluster("x", "i", "local", here, here, "", {}, 1, 0, "off", "core", 0.0, owner=owner)
    assert _what_becomes_of(cluster, "j") == expected


def test_explanation_that_fails() -> None:
    """A fault of ours while a failure is explained is a line for the user, and changes nothing else."""

    def fail(dashboard: Dashboard, job: str) -> Explanation:
        raise ValueError("x")

    dashboard = cast("Dashboard", None)  # not asked
    assert _explained(fail, dashboard, "j") == (["diagnose has failed: ValueError: x"], None, [])


@pytest.mark.parametrize("through", ["", "ssh head"])
def test_looks_at_a_far_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through: str) -> None:
    """Where each look is a command, a login or a step of Slurm, there is one every 3 s."""
    remote = Remote("http://127.0.0.1:9", "127.0.0.1:9", str(tmp_path / "token"), through=through)
    cluster = Cluster("c", "i", "joined", tmp_path, tmp_path, "", {}, 1, 0, "breakpoint", "core", 0.0, remote=remote)
    (tmp_path / "token").write_text("0" * 64)
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        raise asyncio.CancelledError

    async def look() -> None:
        follower = Follower(cluster, "j", on_log=print, on_pause=print)
        watch = DeathWatch(cluster, "j", lambda _: (0, "", None)).watch(follower._dashboard, print)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        await asyncio.gather(follower._watch_pauses(), follower._wait_for_end(), watch, return_exceptions=True)
        monkeypatch.undo()

    asyncio.run(look())
    assert len(waited) == 3
    assert set(waited) == {3.0} if through else max(waited) <= MOST_S


def test_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits between looks are a hundredth of the time, up to two seconds."""
    now = 1_000.0
    cluster = Cluster("c", "i", "compose", Path(), Path(), "", {}, 1, 0, "breakpoint", "core", 0.0)
    monkeypatch.setattr(time, "monotonic", lambda: now)

    async def waits(*ages: float, least_s: float = 0.0) -> list[float]:
        nonlocal now
        pace, waited, began = Pace(cluster, 0.3), list[float](), now

        async def sleep(seconds: float) -> None:
            waited.append(round(seconds, 3))

        monkeypatch.setattr(asyncio, "sleep", sleep)
        for age in ages:
            now = began + age
            await pace.wait(least_s)
        return waited

    assert asyncio.run(waits(0, 10, 60, 150, 3600)) == [0.3, 0.3, 0.6, 1.5, 2.0]
    assert asyncio.run(waits(0, 150, least_s=9.0)) == [9.0, 9.0]


def test_a_request_is_confirmed_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray is asked seldom for requests that wait, and soon again for one that no node can satisfy."""
    cluster = Cluster("c", "i", "compose", tmp_path, tmp_path, "", {"dashboard": 9}, 1, 0, "breakpoint", "core", 0.0)
    (tmp_path / "token").write_text("0" * 64)
    found = iter([None, ("a task with 9 CPUs", "1 node"), None, *[("a task with 9 CPUs", "1 node")] * 3])
    monkeypatch.setattr(resource_requests, "find_unsatisfiable", lambda *_: next(found))
    monkeypatch.setattr(Dashboard, "job", lambda *_: {"job_id": "01000000"})
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    async def look() -> None:
        follower = Follower(cluster, "j", on_log=print, on_pause=print)
        clock = itertools.count(0.0, 3600.0)  # each look is an hour later
        monkeypatch.setattr(time, "monotonic", lambda: next(clock))
        monkeypatch.setattr(asyncio, "sleep", sleep)
        error = await follower._watch_demands()
        monkeypatch.undo()
        assert error.what == "the job asks for a task with 9 CPUs, which cluster 'c' can never give"

    asyncio.run(look())
    seldom, soon = DEMAND_AT_MOST_S, DEMAND_POLL_S
    assert waited == [seldom, seldom, soon, seldom, soon, soon]


def test_a_request_that_an_autoscaler_may_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a cluster that somebody else has sized a job waits, with one note; an odd answer of Ray's ends no watch."""
    cluster = Cluster("c", "i", "joined", tmp_path, tmp_path, "", {"dashboard": 9}, 1, 0, "breakpoint", "core", 0.0)
    (tmp_path / "token").write_text("0" * 64)
    rows: list[Any] = [("a task with 1 GPU", "1 node with 4 CPUs")] * 5 + [KeyError("bundles")] * 2

    def find(*_: object) -> tuple[str, str]:
        if not rows:
            raise asyncio.CancelledError
        row = rows.pop(0)
        if isinstance(row, Exception):
            raise row
        return cast(tuple[str, str], row)

    async def sleep(seconds: float) -> None:
        pass

    monkeypatch.setattr(resource_requests, "find_unsatisfiable", find)
    monkeypatch.setattr(Dashboard, "job", lambda *_: {"job_id": "01000000"})

    async def look() -> None:
        follower = Follower(cluster, "j", on_log=print, on_pause=print)
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "sleep", sleep)
            await follower._watch_demands()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(look())
    assert capsys.readouterr().err.splitlines() == [
        "note: the job waits for a task with 1 GPU, which no node has now: 1 node with 4 CPUs",
        "note: an odd answer is skipped: KeyError: 'bundles'",
    ]
