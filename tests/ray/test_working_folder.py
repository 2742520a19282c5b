"""A joined cluster whose nodes do not see this machine's folders: the working folder is copied to them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from foreign_ray import LOOPBACK, ForeignRay, foreign_ray, outer_address
from gateway_under_test import started
from raydebug.cluster.state import Cluster, read_record
from raydebug.editors.vscode import configuration_for
from runs import raydebug, starting_runs, wait_for

MINE = """\
import ray

def helper(number):
    return number + 1

def step(number):
    total = helper(number)
    total = total * 2
    return total

class Worker:
    def work(self, rounds):
        for number in range(rounds):
            step(number)
        return [1] if rounds < 10_000 else step(rounds) / 0
"""
TRAIN = """\
import sys
import time

import ray

import mine

ray.init(address="auto", log_to_driver=True)
workers = [ray.remote(num_cpus=0.5, scheduling_strategy="SPREAD")(mine.Worker).remote() for _ in range(2)]
print("rows:", open("data.txt").read(), flush=True)
if sys.argv[1] == "crash":
    mine.step(1) / 0
while True:
    ray.get([worker.work.remote(3) for worker in workers])
    time.sleep(0.5)
    if sys.argv[1] == "once":
        break
print("done", flush=True)
"""


def _can_hide() -> bool:
    tried = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", tempfile.gettempdir()]
    return (
        shutil.which("unshare") is not None and subprocess.run(tried, capture_output=True, check=False).returncode == 0
    )


pytestmark = [
    pytest.mark.skipif(not _can_hide(), reason="no mount namespaces here: root can make them"),
    pytest.mark.timeout(300),
]


@dataclass
class Far:
    """A cluster that was joined, and a project that only this machine sees."""

    head: ForeignRay
    cluster: Cluster
    project: Path


@pytest.fixture(scope="module")
def far() -> Iterator[Far]:
    """Join a cluster whose nodes (two in the long form) see an empty folder in place of the project."""
    project = Path(tempfile.mkdtemp(prefix="rw-", dir="/tmp"))
    ip = outer_address()
    try:
        for name, text in {"mine.py": MINE, "train.py": TRAIN, "data.txt": "7", ".gitignore": "*.bin\n"}.items():
            (project / name).write_text(text)
        (project / "big.bin").write_bytes(os.urandom(10))
        subprocess.run(["git", "init", "-q", str(project)], check=True)
        with foreign_ray(with_token=False, ip=ip, before=_without(project)) as head:
            nodes = 1
            if ip != LOOPBACK and "RAYDEBUG_TEST_LONG" in os.environ:  # it starts slowly
                # Hosts have copies of their own; nodes of one host would remove those of the other.
                session = (head.folder / "r" / "session_latest").resolve()
                head.before = _without(project, session / "runtime_resources")
                head.start_worker(ip="127.0.0.2")
                nodes = 2
            wait_for(lambda: _nodes(head) == nodes, "the nodes")
            done = raydebug("up", "--join", head.url, "--name", "far", "--gateway-port", "0", env=head.environ)
            assert done.returncode == 0, done.stderr
            found = read_record("far")
            assert found is not None
            yield Far(head, found, project)
            assert raydebug("down", "--name", "far").returncode == 0
    finally:
        shutil.rmtree(project)


def _without(*folders: Path) -> list[str]:
    """Return the beginning of a command that sees empty folders in place of these."""
    mounts = "".join(f"mount -t tmpfs none {shlex.quote(str(one))} && " for one in folders)
    return ["unshare", "--mount", "sh", "-c", f'{mounts}exec "$@"', "sh"]


def _nodes(head: ForeignRay) -> int:
    from raydebug.cluster.dashboard import Dashboard
    from raydebug.cluster.find import cluster_at

    return len(Dashboard(cluster_at(head.url)).living_nodes())


@pytest.fixture
def edited(far: Far) -> Iterator[Path]:
    """Give the file of the functions; at the end it is as before, and there are no breakpoints."""
    yield far.project / "mine.py"
    (far.project / "mine.py").write_text(MINE)
    raydebug("break", "rm", "all", "--name", "far")


def test_a_training_in_a_copy(far, edited):
    """Breakpoints, source, new breakpoints and an editor have this machine's names, also after an edit."""
    mine = str(edited)
    with starting_runs(far.cluster, far.project) as run:
        job = run("--break", "mine.py:step,max=1", "--", "python", "train.py", "on")
        pauses = job.pauses(2, 120.0)
        assert {pause["file"] for pause in pauses} == {mine}
        assert f"the nodes do not share {far.project}: 4 files of it are copied there, 0.0 MiB" in job.text
        wait_for(lambda: "  mine.py:7 step  (" in job.text, "the line of a pause", 10.0, job)
        edited.write_text("# a comment\n" * 5 + MINE)
        first, second = (pause["id"] for pause in pauses)
        shown = job.attach(first, "w", "l", "tbreak mine.py:8", "c", "w", "c")
        assert f"> {mine}:7 step" in shown
        assert "total = helper(number)" in shown
        assert "# a comment" not in shown, "the source is that of the process"
        assert f"Temporary breakpoint 1 at {mine}:8" in shown
        assert f"> {mine}:8 step" in shown
        _edit(far, second)
        job.attach(second, "c")
        added = raydebug("break", "add", "mine.py:helper,max=1", "--name", "far", cwd=far.project)
        assert added.returncode == 0, added.stderr
        wait_for(job.listed, "a pause at the new breakpoint", run=job)  # the other worker may wait for the next round
        assert {(pause["file"], pause["function"], pause["line"]) for pause in job.listed()} == {(mine, "helper", 4)}
        listed = json.loads(raydebug("break", "list", "--name", "far", "--json").stdout)
        assert {one["source"] for one in listed["breaks"]} == {mine}
        stacks = raydebug("stacks", "--name", "far", "--json")
        assert f'"{mine}"' in stacks.stdout
        assert "working_dir_files" not in stacks.stdout


def _edit(far: Far, pause: str) -> None:
    """Look at a pause as VS Code does, and set a breakpoint in the file of this machine."""
    configuration = configuration_for(far.cluster.name, far.project)
    assert "pathMappings" not in configuration, "the adapter has them"

    async def look() -> None:
        async with asyncio.timeout(60), started({**configuration, "target": pause}) as session:
            stopped = (await session.next_event("stopped", timeout_s=10))["body"]
            frames = (await session.request("stackTrace", {"threadId": stopped["threadId"]}))["stackFrames"]
            assert frames[0]["source"]["path"] == str(far.project / "mine.py")
            asked = {"source": {"path": str(far.project / "mine.py")}, "breakpoints": [{"line": 9}]}
            (one,) = (await session.request("setBreakpoints", asked))["breakpoints"]
            assert (one["verified"], one["source"]["path"]) == (True, str(far.project / "mine.py"))
            await session.request("setBreakpoints", {**asked, "breakpoints": []})

    asyncio.run(look())


@pytest.mark.long
def test_a_crash_in_a_copy(far):
    """The log, the first error, the snapshot and the report of a crash have this machine's names."""
    with starting_runs(far.cluster, far.project) as run:
        job = run("--", "python", "train.py", "crash")
        text = job.end(1)
        assert "rows: 7" in text
        assert f'File "{far.project}/train.py", line 12' in text
        name = text.partition("\njob ")[2].partition(":")[0]
    opened = raydebug("open", name, "-x", "w")
    assert f"{far.project}/train.py:12" in opened.stdout, opened.stdout + opened.stderr
    record = json.loads(raydebug("report", name, "--json").stdout)
    assert record["working_dir"] == str(far.project)
    assert "working_dir_files" not in json.dumps([record["first_error"], record["pauses"], record["snapshots"]])
    logs = raydebug("job", "logs", name, "--name", "far")
    assert f'File "{far.project}/train.py", line 12' in logs.stdout


@pytest.mark.long
def test_a_folder_of_the_nodes_own(far):
    """With --no-upload the job runs in the nodes' own folder of this name; --upload copies it again."""
    with starting_runs(far.cluster, far.project) as run:
        text = run("--no-upload", "--", "python", "train.py", "once").end(2)
        assert f"can't open file '{far.project}/train.py'" in text
        assert "done" in run("--upload", "--", "python", "train.py", "once").end()
        again = run("--", "python", "train.py", "once").end()
        assert "done" in again
        assert "are copied there" not in again, "Ray has this copy already"


@pytest.mark.timeout(120)
def test_a_shared_folder(far):
    """A folder that the nodes see is used as it is; nothing stays of the question."""
    with contextlib.ExitStack() as stack:
        shared = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rs-", dir="/tmp")))
        (shared / "one.py").write_text("import os; print('in', os.getcwd())")
        run = stack.enter_context(starting_runs(far.cluster, shared))
        text = run("--", "python", "one.py").end()
        assert f"in {shared}\n" in text
        assert "copied" not in text
        assert [path.name for path in shared.iterdir()] == ["one.py"]
