"""`raydebug stacks` on jobs of Ray that hang in planted ways, and on slow ones that do not."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from runs import RAYDEBUG, Run, raydebug, wait_for

# A cluster of its own, beside that of the others.
pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("ray-stacks")]
SETTLED_S = 60.0
# kind, the innermost line of the user's that explains it, words of the verdict
HANGS = {
    "queue": ("queue", "Actor.produce", "a queue (put)"),
    "mailbox": ("mailbox", "Actor.train", "Actor.status, which waits in the mailbox of Actor"),
    "gil": ("gil", "Actor.hold", "native code holds Python's lock (GIL), called at "),
}
MORE = {
    "locks": ("deadlock", "Actor.one", "wait for each other's locks"),
    "http": ("network", "Actor.reward", "an HTTP response from 127.0.0.1:"),
    "placing": ("ray-get", "<lambda>", "for which no node has room: it needs 1 CPU, 64 GPUs"),
    # The driver, or others, wait in a loop that polls.
    "actor_locks": ("deadlock", "Actor.ask", "actors wait for each other"),
    "barrier": ("network", "Actor.reward", "an HTTP response from 127.0.0.1:"),
    "wait_and_sleep": ("lock", "Actor.train", "; driver (pid "),
    "stopped": ("stopped", "Actor.stop_itself", "stopped: by SIGSTOP"),
    "sleep": ("sleep", "Actor.nap", "time.sleep"),
    "child": ("subprocess", "Actor.build", "a process that it started"),
    "future": ("unknown", "AsyncActor.generate", ""),
    "poll_get": ("lock", "Actor.train", "waits for Actor.train"),
    "poll_status": ("lock", "Actor.train", "waits for Actor.train"),
    "async_poll": ("lock", "Actor.train", "waits for Actor.train"),
    "own_thread": ("lock", "Actor.train", "waits for Actor.train"),
    "endless_reward": ("moving", "Actor.", "waits for Actor.count_to"),
    "replay_buffer": ("network", "Actor.reward", "an HTTP response from 127.0.0.1:"),
    "gil_of_rank": ("gil", "Actor.hold", "Actor rank 2 is not answering"),
    "disk": ("disk", "Actor.in_vfork", "asleep in the kernel"),
    "thread": ("network", "Actor.reward", "waits for Actor.in_thread"),
    "pool": ("network", "Actor.reward", "waits for Actor.in_pool"),
    "forked": ("network", "Actor.reward", "waits for Actor.wait_for_child"),
    "server": ("network", "do_GET", "waits for Actor.ask_server"),
    "async_many": ("lock", "AsyncActor.many", "a lock or an event (wait)"),
    "async_chain": ("network", "Actor.reward", "; AsyncActor (pid "),
}
SLOW = ("crunch", "steps", "serve")
HEALTHY = (
    "compile",
    "checkpoint",
    "garbage",
    "tokenizer",
    "generation",
    "rewards",
    "validation",
    "weight_syncs",
    "tasks",
)
HEALTHY_S = 40.0


def verdict_on(job: Run, *options: str) -> dict[str, Any]:
    """Return the document of `raydebug stacks --json`."""
    done = raydebug("stacks", "--name", job.cluster.name, "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("how", [*HANGS, *(pytest.param(how, marks=pytest.mark.long) for how in MORE)])
def test_planted_hang(run, how: str) -> None:
    """The verdict on a planted hang has its kind, its line and what the process waits for."""
    kind, function, words = {**HANGS, **MORE}[how]
    job: Run = run("--", "python", "hangs/planted.py", how)
    deadline, document = time.monotonic() + SETTLED_S, {}
    while time.monotonic() < deadline:
        document = verdict_on(job, "--samples", "2") if kind == "moving" else verdict_on(job)
        verdict = document["verdict"]
        if verdict["kind"] == kind and function in verdict["text"] and words in verdict["text"]:
            return
        time.sleep(0.5)
    raise AssertionError(f"{document['verdict']}\n{document['groups']}\n{document['tasks']}\n{job.text}")


@pytest.mark.parametrize("how", [SLOW[0], *(pytest.param(how, marks=pytest.mark.long) for how in SLOW[1:])])
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


def test_hang_is_in_the_run_folder(run, private_state: Path) -> None:
    """`--hang-after` writes stacks and verdict to the run folder and its log, and with `stop` ends the job with 124."""
    job: Run = run("--hang-after", "6", "--on-hang", "stop", "--", "python", "hangs/planted.py", "http")
    text = job.end(code=124)
    said = r" hangs: no call has returned and nothing was logged for \d+ s\nverdict \(\w+\): Actor \(pid "
    assert re.search(said, text), text
    assert re.search(r"^longest call: \S.* \(pid \d+\) in \S+ \(\S+planted\.py:\d+\), for \d+ s or more$", text, re.M)
    assert text.count(" hangs: ") == 1
    (folder,) = [one.parent for one in private_state.rglob("stacks.json")]
    saved = raydebug("stacks", "--from", str(folder / "stacks.json"))
    assert "an HTTP response from 127.0.0.1:" in saved.stdout, saved.stderr
    assert re.search(r"raydebug: verdict \(\w+\): Actor \(pid ", (folder / "job.log").read_text())
    record = json.loads((folder / "run.json").read_text())
    assert (record["status"], record["exit_code"], record["first_error"]["kind"]) == ("stopped", 124, "hang")
    assert [one["code"] for one in record["findings"]] == ["run.hangs"]


ENDLESS = """
import ray
@ray.remote
class Rewards:
    def compute_score(self, number):
        while True:
            number = number // 2 if number % 2 == 0 else 3 * number + 1
ray.init()
ray.get(Rewards.remote().compute_score.remote(27))
"""


@pytest.mark.long
def test_call_that_computes_for_ever(run, tmp_path: Path) -> None:
    """`--hang-after` reports a call that never returns although its lines move, and names it."""
    (tmp_path / "endless.py").write_text(ENDLESS)
    job: Run = run("--hang-after", "6", "--on-hang", "stop", "--", "python", str(tmp_path / "endless.py"))
    text = job.end(code=124)
    named = r"^longest call: Rewards \(pid \d+\) in Rewards\.compute_score \(\S+endless\.py:[67]\), for \d+ s or more$"
    assert re.search(named, text, re.M), text


@pytest.mark.long
def test_hang_is_paused(run) -> None:
    """`--on-hang pause` pauses the process that the verdict names, at its next line."""
    job: Run = run("--hang-after", "6", "--on-hang", "pause", "--", "python", "hangs/planted.py", "poll")
    (pause,) = job.pauses(1)
    assert (pause["kind"], pause["function"]) == ("requested", "Actor.poll")
    line = f"pid {pause['pid']} is paused: raydebug attach --name {job.cluster.name} {pause['id']}"
    wait_for(lambda: line in job.text, "the line about the pause", SETTLED_S, job)


@pytest.mark.alone  # a busy machine starts a worker too slowly for so short a limit
def test_slow_or_paused_job_does_not_hang(run) -> None:
    """A job whose calls return does not hang, nor does one that is paused, however short the limit."""
    slow: Run = run("--hang-after", "6", "--on-hang", "stop", "--", "python", "hangs/planted.py", "tasks")
    wait_for(lambda: "begins" in slow.text, "the program", 60, slow)
    paused: Run = run("--hang-after", "6", "--on-hang", "stop", "--break", "hangs/planted.py:Actor.nap",
                      "--", "python", "hangs/planted.py", "sleep")  # fmt: skip
    paused.pauses(1)
    time.sleep(16)
    assert slow.process.poll() is None, slow.text
    assert paused.process.poll() is None, paused.text
    assert " hangs: " not in slow.text + paused.text


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", HEALTHY)
def test_healthy_job_is_not_blamed(run, how: str) -> None:
    """Slow work that goes on is not reported by `--hang-after`, even where one call takes many limits."""
    job: Run = run("--hang-after", "10", "--on-hang", "stop", "--", "python", "hangs/planted.py", how)
    wait_for(lambda: "begins" in job.text, "the program", 60, job)
    time.sleep(HEALTHY_S)
    assert job.process.poll() is None, job.text
    assert " hangs: " not in job.text


def test_ctrl_c_between_samples(run) -> None:
    """Ctrl-C ends `stacks --samples` with 130, without a traceback; the job continues."""
    job: Run = run("--", "python", "hangs/planted.py", "sleep")
    while not verdict_on(job)["groups"]:
        time.sleep(0.3)
    # A shell starts programs in the background with SIGINT ignored, and the tests may run in one.
    argv = ["env", "--default-signal=INT", str(RAYDEBUG), "stacks", "--name", job.cluster.name, "--samples", "10"]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = iter(process.stderr.readline, "")  # on a busy machine also who has not answered yet
        assert "sample 2 of 10 in 2 s\n" in said
        process.send_signal(signal.SIGINT)
        assert "Traceback" not in process.stderr.read()
    assert process.returncode == 130
    assert job.process.poll() is None
