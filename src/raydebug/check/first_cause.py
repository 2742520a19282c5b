"""Find the first cause in a log: the exception that came before those that only pass it on. Pure, linear time."""

from __future__ import annotations

import re
from collections.abc import Iterator

# What programs put before a line of theirs: Ray's "(TaskRunner pid=12)", vLLM's "(EngineCore pid=1) ERROR 11-21
# 20:37:58 [core.py:10] ", and colours.
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_SPEAKER = re.compile(r"^\(\w[^()]{0,120}\) ?")
_LEVEL = re.compile(r"^(?:ERROR|WARNING|INFO) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[^\]]{1,80}\] ?)?")
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:: .*)?$")  # what ends a traceback, not indented
_FRAME = re.compile(r'^\s+File "([^"]+)", line (\d+)')
# These say that another process failed, or wrap what did.
_PASS_ON = ("RayTaskError", "RayActorError", "ActorDiedError", "EngineDeadError", "EngineCore initialization",
            "InstantiationException", "See root cause above", "no materializable trajectories")  # fmt: skip
_OF_PACKAGES = re.compile(r"/(?:site-packages|dist-packages|lib/python3[.\d]*)/|^<frozen ")
_OF_TASK = re.compile(r"RayTaskError\((\w+)\)")
LINES_MAX = 20_000


def find_first_cause(log: str) -> tuple[str, str] | None:
    """Return the exception in a log that is no other's echo, and the line of code that raised it.

    One that the user's own code raised comes before all others: libraries report it on, each in its words. Else, where
    Ray says of what kind the error was that ended the job, the first of that kind: one that somebody caught may stand
    before it. Else the first: those that follow mostly come of it.

    Args:
        log: what the processes printed, each line with its speaker before it.
    """
    found = list(_exceptions(log))
    kinds = _OF_TASK.findall(log)
    real = [one for one in found if not any(word in one[0] for word in _PASS_ON)]
    of_kind = [one for one in real if kinds and one[0].partition(":")[0].rpartition(".")[2] == kinds[-1]]
    own = [one for one in real if one[1] and not _OF_PACKAGES.search(one[1])]
    return next(iter(own or of_kind or real or found), None)


def _exceptions(log: str) -> Iterator[tuple[str, str]]:
    """Yield each exception that ends a traceback, with the line that raised it."""
    where, in_traceback = "", False
    for raw in log.splitlines()[-LINES_MAX:]:
        line = _bare(raw)
        if line.startswith("Traceback (most recent call last)"):
            in_traceback, where = True, ""
        elif in_traceback and (frame := _FRAME.match(line)):
            where = f"{frame[1]}:{frame[2]}"
        elif in_traceback and _EXCEPTION.match(line):
            in_traceback = False
            yield line.strip(), where


def _bare(line: str) -> str:
    line = _COLOUR.sub("", line)
    for _ in range(3):
        shorter = _LEVEL.sub("", _SPEAKER.sub("", line))
        if shorter == line:
            break
        line = shorter
    return line


def last_words(log: str) -> str:
    """Return the last line that says something."""
    lines = [_bare(line).strip() for line in log.splitlines()[-200:]]
    return next((line for line in reversed(lines) if line), "(it printed nothing)")[:300]
