"""`raydebug stacks` on jobs of Ray that hang in planted ways, and on slow ones that do not."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from runs import Run, raydebug

pytestmark = pytest.mark.xdist_group("ray-stacks")  # a cluster of its own, beside that of the others
SETTLED_S = 60.0
# kind, the innermost line of the user's that explains it, words of the verdict
HANGS = {
    "locks": ("deadlock", "Actor.one", "wait for each other's locks"),
    "actor_locks": ("deadlock", "Actor.ask", "actors wait for each other"),
    "queue": ("queue", "Actor.produce", "a queue (put)"),
    "http": ("network", "Actor.reward", "an HTTP response from 127.0.0.1:"),
    "placing": ("ray-get", "<lambda>", "for which no node has room: it needs 1 CPU, 64 GPUs"),
    "mailbox": ("mailbox", "Actor.train", "Actor.status, which waits in the mailbox of Actor"),
    "gil": ("gil", "", "native code holds Python's lock (GIL)"),
    "sleep": ("sleep", "Actor.nap", "time.sleep"),
    "child": ("subprocess", "Actor.build", "a process that it started"),
    "future": ("unknown", "AsyncActor.generate", ""),
}
SLOW = ("crunch", "steps", "serve")


def verdict_on(job: Run, *options: str) -> dict[str, Any]:
    """Return the document of `raydebug stacks --json`."""
    done = raydebug("stacks", "--name", job.cluster.name, "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", HANGS)
def test_planted_hang(run, how: str) -> None:
    """The verdict on a planted hang gives its kind, its line and what is waited for."""
    kind, function, words = HANGS[how]
    job: Run = run("--", "python", "hangs/planted.py", how)
    deadline, document = time.monotonic() + SETTLED_S, {}
    while time.monotonic() < deadline:
        document = verdict_on(job)
        verdict = document["verdict"]
        if verdict["kind"] == kind and function in verdict["text"] and words in verdict["text"]:
            return
        time.sleep(0.5)
    raise AssertionError(f"{document['verdict']}\n{document['groups']}\n{document['tasks']}\n{job.text}")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", SLOW)
def test_slow_job(run, how: str) -> None:
    """A slow job that moves between two samples does not hang."""
    job: Run = run("--", "python", "hangs/planted.py", how)
    deadline = time.monotonic() + SETTLED_S
    while len(verdict_on(job)["groups"]) < 2:  # the driver and its actor
        assert time.monotonic() < deadline, job.text
        time.sleep(0.5)
    kind = ""
    while kind != "moving":  # each sample may see a loop at the same line again
        assert time.monotonic() < deadline, kind
        kind = verdict_on(job, "--samples", "3")["verdict"]["kind"]
