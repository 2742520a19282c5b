"""Logs of runs that start, warn and succeed: none is a failure; and failures after progress, or after an end, are."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from raydebug.diagnose.answer import FAILURE, NO_FAILURE, Answer
from raydebug.diagnose.cause import diagnose
from raydebug.diagnose.rules import prefilter
from raydebug.diagnose.scan import Kept, read_log

# Recorded, or put together from what the programs print; each begins with a line `=== name: about`.
_PARTS = re.split(r"^=== (.*)\n", (Path(__file__).parent / "healthy_logs.txt").read_text(encoding="utf-8"), flags=re.M)
LOGS = {title.partition(":")[0]: log for title, log in zip(_PARTS[1::2], _PARTS[2::2], strict=True)}

STEPS = "".join(f"step:{number} - actor/loss:0.1\n" for number in range(1, 30))
TRACE = 'Traceback (most recent call last):\n  File "/w/train.py", line 9, in score\nIndexError: list index\n'
DONE = "sft training complete\n"
DISK = "OSError: [Errno 28] No space left on device: '/c'\n"
LOST = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"


def say(*logs: str) -> Answer:
    """Return what the rules say of some logs."""
    kept = Kept()
    for number, log in enumerate(logs):
        read_log(io.BytesIO(log.encode()), f"{number}.log", prefilter(), kept)
    return diagnose(kept.lines)


@pytest.mark.parametrize("name", LOGS)
def test_healthy(name: str) -> None:
    """A run that goes past its warnings and errors, or is noisy after its end, is no failure."""
    assert len(LOGS) >= 20
    answer = say(LOGS[name])
    assert answer.status == NO_FAILURE, answer.diagnoses[:1]


@pytest.mark.parametrize(
    ("log", "name"),
    [
        (STEPS + TRACE, "user-code"),
        (TRACE + STEPS + TRACE.replace("score", "save").replace("list index", "another"), "user-code"),
        (STEPS + DONE + TRACE, "user-code"),
        (STEPS + DONE + STEPS + LOST, "ray-actor-died"),
        (STEPS + DONE + "step:1 - loss:1\nWARNING Worker PID: 77\nsrun: error: n1: task 0: Killed\n", ""),
        (STEPS + DONE + "+ python3 -m verl.trainer.main_ppo\n" + DISK, "object-store-or-disk-full"),
        (STEPS + DONE + "INFO worker.py:1 -- Started a local Ray instance.\n" + LOST, "ray-actor-died"),
        (STEPS + "Training finished with exit code 1\n", "unknown"),
        (STEPS + DONE + DISK + "srun: error: n1: task 0: Exited with exit code 1\n",
         "object-store-or-disk-full"),
        (STEPS + "wandb: Run summary:\n" + TRACE + "wandb: View run at: x\nwandb: Synced 5 files\n", "user-code"),
        (STEPS + "run.sh: Zeile 12: 4242 Getötet                 python train.py\n", "ray-actor-died"),
        (STEPS + "run.sh: 行 12: 4242 段错误 (核心已转储) python train.py\n", "ray-actor-died"),
        (STEPS + "srun: *** JOB 1 ON n7 CANCELLED AT 2026-01-02T10:20:30 DUE TO TIME LIMIT ***\n", "slurm-time-limit"),
        (TRACE.replace("IndexError: list index", "_queue.Empty"), "user-code"),
        (TRACE.replace("IndexError: list index", "mylib.errors.RewardMismatch: gold is missing"), "user-code"),
        (TRACE.replace("IndexError: list index", "shutil.Error: [('a', 'b', 'no')]"), "user-code"),
        ("FATAL something odd\n", "unknown"),
    ],
)  # fmt: skip
def test_failure(log: str, name: str) -> None:
    """A failure after progress, after the end of an earlier phase, or of the program after its end, is found."""
    answer = say(log)
    assert answer.status != NO_FAILURE
    assert name in ("", answer.diagnoses[0].name)


def test_the_last_error_is_the_one() -> None:
    """Of two errors, the one that the run went past is not the answer."""
    memory = "(W pid=1) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    first, *_ = say(memory + "(W pid=1) step:2 - actor/loss:0.1\n" + STEPS + TRACE).diagnoses
    assert first.title == "IndexError in the program at /w/train.py:9 score"


def test_logs_have_ends_of_their_own() -> None:
    """The end or the progress of one log says nothing of another."""
    ended = STEPS + "Training finished\n"
    killed = STEPS + "bash: line 1: 4242 Killed python train.py\n"
    for logs in ((ended, killed), (killed, ended), (killed, STEPS * 3), (ended, STEPS + LOST)):
        assert say(*logs).status == FAILURE


def test_measurements() -> None:
    """Words of failure with a number are measurements."""
    words = (
        "error rate 0.0",
        "fatal flaws found: 0",
        "number of errors: 0",
        "abort_threshold=3",
        "panic: 0",
        "error: 0",
    )
    assert say("\n".join(words)).status == NO_FAILURE


def test_a_log_without_an_end() -> None:
    """A log that breaks off in a step says so, and one that has an end does not."""
    (note,) = say(STEPS).notes
    assert note.startswith("0.log has no end of the run after line 29: it still runs, or was ended from")
    assert say(STEPS + "Training finished\n").notes == []
    assert say(STEPS, STEPS, STEPS, STEPS).notes[-1] == "1 more logs have no end of the run"


def test_frames_of_faulthandler() -> None:
    """A dump of faulthandler lends its frames to no later error."""
    dump = 'Timeout (0:00:15)!\nThread 0x7f (most recent call first):\n  File "/w/other.py", line 7 in poll\n'
    (found,) = say(dump + "ValueError: bad config\n").diagnoses
    assert found.title == "ValueError in the program"


@pytest.mark.parametrize(
    "prefix",
    [" 3: ", "[pod/ray-worker-0/ray-worker] ", "ray-worker-0 ray-worker ", "Jan 02 10:20:30 node07 bash[4242]: "],
    ids=["srun --label", "kubectl --prefix", "stern", "journald"],
)
def test_prefixes(prefix: str) -> None:
    """Prefixes of cluster tools are taken off: the frames of an exception are read."""
    (found,) = say("".join(prefix + line for line in TRACE.splitlines(keepends=True))).diagnoses
    assert found.title == "IndexError in the program at /w/train.py:9 score"
