"""The zygotes of a warm cluster: which one may serve a start, which one is to be made, which one goes."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any

from raydebug.worker import names
from raydebug.zygotes import environment
from raydebug.zygotes.packages import LEAVES, MODULES, is_installed

ZYGOTES = 3  # verl's driver, its workers, and vLLM's engine differ in variables that are read at import
FAILURES = 3
NEEDED_MIB = 2048  # of free memory, to start another one: each takes about 0.8 GiB

Differences = dict[str, tuple[str | None, str | None]]
_DROPPED_FOR_OTHERS = "least recently used"


class Zygote:
    """One process with the imports done, as the keeper sees it."""

    _numbers = itertools.count(1)

    def __init__(self, request: dict[str, Any], without: tuple[str, ...]) -> None:
        self.number = next(self._numbers)
        self.environ: dict[str, str] = environment.for_zygote(request["env"])
        self.kind = (request["executable"], request["flags"])
        self.without = without
        self.facts: dict[str, Any] | None = None
        self.served = 0
        self.used = time.monotonic()
        self.line, theirs = socket.socketpair()
        code = f"from raydebug.zygotes.zygote import serve; serve({theirs.fileno()}, {_modules()!r}, {without!r})()"
        argv = [request["executable"], "-c", code]
        self.process = subprocess.Popen(  # noqa: S603 - the interpreter that asked, and our own code
            argv, env=self.environ, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd="/"
        )
        theirs.close()

    @property
    def is_ready(self) -> bool:
        """Whether it can serve."""
        return self.facts is not None and self.facts["unfit"] is None

    def why_not(self, request: dict[str, Any], hiding: set[str]) -> str | None:
        """Return why this one cannot serve a request, or None."""
        if self.kind != (request["executable"], request["flags"]):
            return "another interpreter, or other options of it"
        if self.facts is None:
            return None if self._looks_alike(request, hiding) else "another environment"
        if self.facts["unfit"]:
            return str(self.facts["unfit"])
        if hidden := hiding & set(self.facts["tops"]):
            return f"the job has its own {', '.join(sorted(hidden))}"
        if different := environment.differences(self.facts["environment"], request["env"]):
            return f"other values of {', '.join(sorted(different))}"
        return None

    def _looks_alike(self, request: dict[str, Any], hiding: set[str]) -> bool:
        return self.without == _without(hiding) and self.environ == environment.for_zygote(request["env"])


class Pool:
    """All zygotes of a cluster.

    Args:
        on_start: told each new one.
        on_drop: told each one that goes, and why.
    """

    def __init__(self, on_start: Callable[[Zygote], None], on_drop: Callable[[Zygote, str], None]) -> None:
        self._on_start, self._on_drop = on_start, on_drop
        self.zygotes: list[Zygote] = []
        self._hopeless: set[str] = set()
        self._failures = 0

    def choose(self, request: dict[str, Any]) -> tuple[Zygote | None, str]:
        """Return the zygote that serves a request, or None with the reason; one for the next time is started then."""
        hiding: set[str] = set()
        for folder in environment.user_folders(request["env"], request["cwd"], request["argv"]):
            if not is_installed(os.path.join(folder, "")):
                hiding |= environment.modules_in(folder)
        reasons = []
        for zygote in self.zygotes:
            reason = zygote.why_not(request, hiding)
            if reason is None:
                if zygote.is_ready:
                    return zygote, ""
                return None, f"zygote {zygote.number} is not ready"
            reasons.append(reason)
        if any(not zygote.facts for zygote in self.zygotes):
            return None, "another zygote is loading"  # it may do; two at one time would only slow the job
        if self._failures >= FAILURES:
            return None, "zygotes end while they load (the pool's log says why)"
        reason = "; ".join(dict.fromkeys(reasons)) or "the first of its kind"
        if reason not in self._hopeless:
            self.start(request, _without(hiding))
        return None, reason

    def start(self, request: dict[str, Any], without: tuple[str, ...] = ()) -> None:
        """Start a zygote for requests like this one, if there is memory for it; the least recently used one goes."""
        while len(self.zygotes) >= ZYGOTES:
            self.drop(min(self.zygotes, key=lambda z: z.used), _DROPPED_FOR_OTHERS)
        if _free_mib() < NEEDED_MIB:
            return
        zygote = Zygote(request, without)
        self.zygotes.append(zygote)
        self._on_start(zygote)

    def drop(self, zygote: Zygote, why: str) -> None:
        """Let a zygote go: it ends when its last fork has."""
        if zygote in self.zygotes:
            self._failures += zygote.facts is None and why != _DROPPED_FOR_OTHERS
            self.zygotes.remove(zygote)
            self._on_drop(zygote, why)
            zygote.line.close()
            if zygote.facts is None:
                zygote.process.kill()

    def note_ready(self, zygote: Zygote, facts: dict[str, Any]) -> None:
        """Take down what a zygote says of itself once its imports are done."""
        zygote.facts = facts
        self._failures = 0
        if facts["unfit"]:
            self._hopeless.add(facts["unfit"])
            zygote.line.shutdown(socket.SHUT_WR)


def _modules() -> tuple[str, ...]:
    """Return what to import: the user's own list, or what a verl training imports."""
    wanted = os.environ.get(names.WARM_MODULES, "")
    return tuple(wanted.split(",")) if wanted else MODULES


def _without(hiding: set[str]) -> tuple[str, ...]:
    return tuple(name for name in LEAVES if name in hiding)


def _free_mib() -> int:
    with open("/proc/meminfo") as file:
        rows = dict(line.split(":", 1) for line in file)
    return int(rows["MemAvailable"].split()[0]) // 1024
