"""Snapshots of crashes of real jobs of Ray, in the folders of their runs."""

from __future__ import annotations

import gzip
import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from raydebug.runs.folder import runs_dir
from runs import Run, raydebug, three_lines, wait_for

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("ray-stacks")]  # they share its cluster
MODES = {"task": "legacy", "actor": "breakpoint"}


def folder_of(job: Run) -> Path:
    """Return the folder of a run."""
    found = re.search(r"^job (raydebug-\S+):", job.text, re.MULTILINE)
    assert found, job.text
    return runs_dir() / found[1]


def snapshots(job: Run) -> list[dict[str, Any]]:
    """Return the snapshots in the folder of a run."""
    files = sorted((folder_of(job) / "snapshots").glob("*.snapshot.gz"))
    return [json.loads(gzip.decompress(file.read_bytes())) for file in files]


def raised_in(document: dict[str, Any]) -> str:
    """Return the local `value` of the frame that raised."""
    frame = document["frames"][0]
    return str(document["values"][frame["locals"]["value"]]["text"])


@pytest.mark.long
@pytest.mark.timeout(240)
def test_every_kind_of_process(run):
    """A crash of a task, an actor, its __init__, an async actor, a generator, a driver or a child writes one file."""
    kinds = ["task", "actor", "init", "async", "generator", "driver", "child"]
    jobs: dict[str, Run] = {kind: run("--debugger", "off", "--", "python", "crashes.py", kind) for kind in kinds}
    for kind, job in jobs.items():
        text = job.end(0 if kind == "child" else 1)
        (document,) = snapshots(job)
        assert raised_in(document) == kind
        assert document["frames"][0]["function"] == "boom"
        assert re.search(rf"^next: raydebug open( {folder_of(job).name})?$", text, re.MULTILINE), text
        assert ("note: a process crashed: ValueError in boom" in text) == (kind == "child")
        assert f"boom in {kind}" in text or kind == "child"
    record = json.loads((folder_of(jobs["task"]) / "run.json").read_text())
    assert [one["exception"] for one in record["snapshots"]] == ["ValueError"]
    (file,) = (folder_of(jobs["task"]) / "snapshots").iterdir()
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o600, 0o700)


def test_no_snapshot(run):
    """A cancelled task has no snapshot."""
    job = run("--", "python", "crashes.py", "cancelled")
    job.end(1)
    assert snapshots(job) == []


@pytest.mark.long
def test_two_jobs_at_once(run):
    """Each of two jobs, one of them with the legacy debugger, has its own snapshots."""
    jobs = {kind: run("--debugger", mode, "--", "python", "crashes.py", kind) for kind, mode in MODES.items()}
    for kind, job in jobs.items():
        job.end(1)
        assert [raised_in(one) for one in snapshots(job)] == [kind]


@pytest.mark.long
def test_a_folder_that_cannot_be_written(run):
    """With a full disk, here a file in place of the folder, one line says so; log and exit code stay the same."""
    job: Run = run("--", "python", "crashes.py", "task")
    wait_for(lambda: "job raydebug-" in job.text, "the job", run=job)
    folder = folder_of(job)
    wait_for(folder.is_dir, "its folder", run=job)
    (folder / "snapshots").touch()
    text = job.end(1)
    assert text.count("snapshots of crashes are not kept: ") == 1
    assert "raydebug open" not in text
    assert json.loads((folder / "run.json").read_text())["snapshots"] == []


@pytest.mark.timeout(180)
def test_of_a_pause(run, tmp_path):
    """A snapshot of a post-mortem pause shows the crash; the pause stays, and a wrong id is refused."""
    job: Run = run("--debugger", "post-mortem", "--", "python", "crashes.py", "actor")
    (pause,) = job.pauses(1)
    file = tmp_path / "x.snapshot.gz"
    done = raydebug("snapshot", "--name", job.cluster.name, "--output", str(file))
    assert done.returncode == 0, done.stderr
    document = json.loads(gzip.decompress(file.read_bytes()))
    assert raised_in(document) == "actor"
    assert document["summary"]["kind"] == "pause"
    refused = three_lines(raydebug("snapshot", "99", "--name", job.cluster.name), 1)
    assert refused.startswith("error: the gateway of cluster")
    assert raydebug("snapshot", "all", "--name", job.cluster.name).returncode == 0
    kinds = [document["summary"]["kind"] for document in snapshots(job)]
    assert kinds.count("pause") == 1, "of `snapshot all`; the other one has a file of its own"
    job.attach(pause["id"], "c")
    job.end(1)
