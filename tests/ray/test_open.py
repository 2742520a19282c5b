"""The snapshots of a real job of Ray, opened offline: `raydebug open` and the report of its run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from runs import Run, raydebug

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("ray-stacks")]  # they share its cluster


def test_a_job_that_crashed(run):
    """The command in the job's log opens the crash with its frame and locals; the report lists it."""
    job: Run = run("--debugger", "off", "--", "python", "crashes.py", "actor")
    text = job.end(1)
    end = (
        r"\nValueError: boom in actor\n  raised by .*, at \S*crashes.py:\d+\n    raise ValueError\(.*\)\n"
        r"next: raydebug open\n"
    )
    assert re.search(f"{end}$", text), text
    found = re.search(r"^job (raydebug-\S+):", text, re.MULTILINE)
    assert found, text
    done = raydebug("open", found[1], "-x", "p value", "-x", "u", "-x", "w", "-x", "p self")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "'actor'"
    assert re.fullmatch(r"> \S+/crashes.py:\d+ Actor.method", lines[1])
    assert lines[2] == "->         boom(value)"
    assert lines[-1] == "<crashes.Actor>"
    listed = json.loads(raydebug("open", "--list", found[1], "--json").stdout)
    assert [(one["exception"], one["function"]) for one in listed["snapshots"]] == [("ValueError", "boom")]
    page = Path(raydebug("report", found[1]).stdout.strip()).read_text(encoding="utf-8")
    assert f"raydebug open {found[1]} --pick 1" in page
    assert "boom in actor" in Path(raydebug("open", found[1], "--html").stdout.strip()).read_text(encoding="utf-8")


@pytest.mark.long
def test_ranks_that_crash_in_the_same_way(run):
    """`open --list` has one row for all ranks that crash in the same way."""
    job: Run = run("--", "python", "crashes.py", "many", "4")
    text = job.end(0, timeout_s=100)
    found = re.search(r"job (raydebug-\S+):", text)
    assert found, text
    done = raydebug("open", "--list", found[1])
    rows = [line for line in done.stdout.splitlines() if line[:2].strip().isdigit()]
    assert len(rows) == 1, done.stdout
    assert " first " in rows[0]
    assert len(json.loads(raydebug("open", "--list", found[1], "--json").stdout)["snapshots"]) == 4
