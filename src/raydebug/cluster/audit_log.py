"""The audit lines of every cluster's gateway: kept in the user's state folder for 30 days, also after `down`.

The gateway of a local cluster writes its file itself (gateway/logs.py: one file a day). The lines of containers and of
joined clusters are copied when the cluster goes down: from Docker's log, and from that of the gateway's job.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable
from pathlib import Path

from raydebug import render
from raydebug.cluster.state import check_name
from raydebug.settings.files import open_private, state_dir

KEPT_DAYS = 30
_LINE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) \w+ audit: (.*)")


def file_of(name: str) -> Path:
    """Return today's file for a cluster's name; earlier days are beside it, with the date as suffix."""
    return state_dir() / "audit" / f"{check_name(name)}.log"


def read(name: str) -> list[str]:
    """Return the kept audit lines of the clusters of this name, oldest first."""
    lines: list[str] = []
    for path in [*sorted(file_of(name).parent.glob(f"{name}.log.*")), file_of(name)]:
        with contextlib.suppress(OSError):
            lines += path.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines


def keep(name: str, log: Iterable[str]) -> None:
    """Add the audit lines of a gateway's log to the kept ones, without duplicates; a full disk is no error."""
    known = set(read(name))
    fresh = [line for line in log if _LINE.fullmatch(line) and line not in known]
    if not fresh:
        return
    # Not the name to which the file of a local cluster is rotated at midnight: rotation would replace it.
    path = file_of(name).with_suffix(f".log.{time.strftime('%Y-%m-%d', time.gmtime())}-containers")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open_private(path) as file:
            file.write("".join(f"{line}\n" for line in fresh).encode())
    except OSError as error:
        render.say(f"note: {len(fresh)} audit lines are lost: {path}: {error.strerror or error}")


def prune() -> None:
    """Remove audit lines older than KEPT_DAYS, of all clusters."""
    oldest = time.time() - KEPT_DAYS * 24 * 3600
    for path in (state_dir() / "audit").glob("*.log*"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < oldest:
                path.unlink()


def describe(line: str) -> dict[str, str] | None:
    """Return the JSON object of an audit line; None for any other line.

    >>> describe('2026-11-22T18:00:00.123Z INFO audit: detach pause=1 client="vscode"@127.0.0.1:4711')
    {'at': '2026-11-22T18:00:00.123Z', 'event': 'detach', 'text': 'detach pause=1 client="vscode"@127.0.0.1:4711'}
    """
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    return {"at": found[1], "event": found[2].partition(" ")[0], "text": found[2]}
