"""The zygotes of a cluster: choose one for a start, start another one, drop the least recently used."""

from __future__ import annotations

import itertools
import os
import pkgutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from raydebug.prefork import environment
from raydebug.prefork.hand_over import program_at
from raydebug.prefork.zygote import LEAVES, MODULES, Facts, is_installed
from raydebug.protocol import variables

if TYPE_CHECKING:
    from raydebug.prefork.hand_over import Message

ZYGOTES = 3  # verl's driver, its workers, and vLLM's engine differ in variables that are read at import
FAILURES = 3
NEEDED_MIB = 2048  # of free memory, to start another one: each takes about 0.8 GiB

_DROPPED_FOR_OTHERS = "least recently used"


class Zygote:
    """One process with the imports done, as the server sees it."""

    _numbers = itertools.count(1)

    def __init__(self, request: Message, without: tuple[str, ...]) -> None:
        self.number = next(self._numbers)
        self.environ: dict[str, str] = environment.for_zygote(request["env"])
        self.kind = (request["executable"], request["flags"])
        self.without = without
        self.facts: Facts | None = None
        self.served = 0
        self.used = time.monotonic()
        self.connection, theirs = socket.socketpair()
        own = os.environ.get(variables.PREFORK_MODULES, "")  # the user's list
        modules = tuple(own.split(",")) if own else MODULES
        code = f"from raydebug.prefork.zygote import serve; serve({theirs.fileno()}, {modules!r}, {without!r})()"
        argv = [request["executable"], "-c", code]
        self.process = subprocess.Popen(  # noqa: S603 - the interpreter of the request, and our own code
            argv, env=self.environ, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd="/"
        )
        theirs.close()

    def why_not(self, request: Message, hiding: set[str]) -> str | None:
        """Return why this one cannot serve a request, or None."""
        if self.kind != (request["executable"], request["flags"]):
            return "another interpreter, or other options of it"
        if self.facts is None:
            alike = self.without == _without(hiding) and self.environ == environment.for_zygote(request["env"])
            return None if alike else "another environment"
        if self.facts["unfit"]:
            return str(self.facts["unfit"])
        if hidden := hiding & set(self.facts["tops"]):
            return f"the job has its own {', '.join(sorted(hidden))}"
        if different := environment.differences(self.facts["environment"], request["env"]):
            return f"other values of {', '.join(sorted(different))}"
        return None


class Pool:
    """All zygotes of a cluster."""

    def __init__(self, on_start: Callable[[Zygote], None], on_drop: Callable[[Zygote, str], None]) -> None:
        self._on_start, self._on_drop = on_start, on_drop
        self.zygotes: list[Zygote] = []
        self._unfit_reasons: set[str] = set()
        self._failures = 0

    def choose(self, request: Message) -> tuple[Zygote | None, str]:
        """Return the zygote that serves a request, or None and the reason; then one for the next request is started."""
        hiding: set[str] = set()
        for folder in _user_folders(request["env"], request["cwd"], request["argv"]):
            if not is_installed(os.path.join(folder, "")):
                hiding |= {module.name for module in pkgutil.iter_modules([folder])}
        reasons = []
        for zygote in self.zygotes:
            reason = zygote.why_not(request, hiding)
            if reason is None:
                if zygote.facts is not None:
                    return zygote, ""
                return None, f"zygote {zygote.number} is not ready"
            reasons.append(reason)
        if any(not zygote.facts for zygote in self.zygotes):
            return None, "another zygote is loading"  # it may fit; two at once would only slow the job down
        if self._failures >= FAILURES:
            return None, "zygotes end while they load (the pool's log says why)"
        reason = "; ".join(dict.fromkeys(reasons)) or "the first of its kind"
        if reason not in self._unfit_reasons:
            self.start(request, _without(hiding))
        return None, reason

    def start(self, request: Message, without: tuple[str, ...] = ()) -> None:
        """Start a zygote for requests like this one if memory allows; drop the least recently used one."""
        while len(self.zygotes) >= ZYGOTES:
            self.drop(min(self.zygotes, key=lambda z: z.used), _DROPPED_FOR_OTHERS)
        with open("/proc/meminfo") as file:
            rows = dict(line.split(":", 1) for line in file)
        if int(rows["MemAvailable"].split()[0]) // 1024 < NEEDED_MIB:
            return
        zygote = Zygote(request, without)
        self.zygotes.append(zygote)
        self._on_start(zygote)

    def drop(self, zygote: Zygote, why: str) -> None:
        """Drop a zygote: it ends after its last fork."""
        if zygote in self.zygotes:
            self._failures += zygote.facts is None and why != _DROPPED_FOR_OTHERS
            self.zygotes.remove(zygote)
            self._on_drop(zygote, why)
            zygote.connection.close()
            if zygote.facts is None:
                zygote.process.kill()

    def note_ready(self, zygote: Zygote, facts: Facts) -> None:
        """Store the facts that a zygote reports after its imports."""
        zygote.facts = facts
        self._failures = 0
        if facts["unfit"]:
            self._unfit_reasons.add(facts["unfit"])
            zygote.connection.shutdown(socket.SHUT_WR)


def _user_folders(environ: Mapping[str, str], cwd: str, argv: list[str]) -> list[str]:
    """Return the folders that a process searches for modules before the installed packages."""
    at = program_at(argv)
    script = argv[at] if at < len(argv) else ""
    first = cwd if script in ("", "-m", "-c") else os.path.dirname(os.path.realpath(os.path.join(cwd, script)))
    # Ray 2.60.0 _private/worker.py:2713 adds the driver's folder and its script's to the path of its workers.
    folders = [first, cwd, environ.get(variables.WORKING_DIR, ""), *environ.get("PYTHONPATH", "").split(os.pathsep)]
    return [folder for folder in dict.fromkeys(folders) if folder and folder != "/"]


def _without(hiding: set[str]) -> tuple[str, ...]:
    return tuple(name for name in LEAVES if name in hiding)
