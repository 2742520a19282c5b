"""Processes whose control channel has ended: the gateway gathers what is known of each end, before it is lost.

Of a process that the gateway can see (the same machine and pid namespace) it holds a pidfd from the beginning, which
gives the exit status after the parent has taken it. What the node knows is read here too; of another node it is asked
of any other process there.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import os
import select
import struct
import time
from collections.abc import Callable, Sequence
from typing import cast

from raydebug.gateway.background import keep
from raydebug.gateway.channel import ControlChannel, NoAnswer
from raydebug.gateway.kept import KeptPerJob, Living, size_of
from raydebug.gateway.listener import PIDFD_SHARE, files_of
from raydebug.protocol import node_facts
from raydebug.protocol.death import MAX_ENDED, EndedProcess, Kill
from raydebug.protocol.questions import NODE, NodeBody, NodeFacts

ENDS_WITHIN_S = 1.0  # a process closes its files before it has ended; one that still runs then has lost its gateway
ANSWER_S = 0.5
DESCRIBED_AFTER_S = (2.0, 8.0, 50.0)
KILLED_WITHIN_S = 30.0  # of the signal; a process that lived on for longer has ended for another reason
MAX_KEPT_BYTES = 32 * 1024 * 1024  # of all jobs
# Linux 6.15 include/uapi/linux/pidfd.h: PIDFD_GET_INFO, struct pidfd_info (64 bytes), PIDFD_INFO_EXIT.
_GET_INFO, _INFO, _WITH_EXIT, _EXIT_CODE_AT = 0xC040FF0B, 64, 1 << 3, 60


class Ended:
    """The ends of processes, by job."""

    def __init__(self, peers: Callable[[str], Sequence[ControlChannel]], living: Living = tuple) -> None:
        self._peers = peers  # the channels of the processes in a namespace
        self._kept = KeptPerJob[EndedProcess](MAX_KEPT_BYTES, MAX_ENDED, living)
        # Microseconds: higher than the numbers of a gateway before, as no cluster ends a million processes a second.
        self._numbers = itertools.count(time.time_ns() // 1000)
        self._here = node_facts.namespace()
        self._handles: dict[ControlChannel, int] = {}
        self._raylets: dict[int, int] = {}  # pidfds, by process id
        self._kills: dict[tuple[str, str, int], Kill] = {}  # the last one of each process

    def of_job(self, job: str, after: int = 0) -> list[EndedProcess]:
        """Return the ended processes of a job with a higher number, in the order of their ends; all that are back."""
        found = [process for process in self._kept.of_job(job) if process["number"] > after or process.get("is_back")]
        return sorted(found, key=lambda process: process["at"])

    def watch(self, channel: ControlChannel) -> None:
        """Hold a process of this machine, and its raylet; note that one is back that had only lost its connection."""
        keep(_describe(channel))
        for process in self._kept.of_job(channel.about.get("job") or ""):
            if process["instance"] == channel.instance:
                process["is_back"] = True
        self._kills.pop(_key(channel), None)  # of an earlier process with this id
        pid, raylet = channel.about.get("pid") or 0, channel.birth.get("raylet", 0)
        is_here = self._here and channel.birth.get("ns") == self._here
        if not is_here or len(self._handles) >= files_of(PIDFD_SHARE):  # without it, the end has no status
            return
        with contextlib.suppress(OSError, ValueError):
            handle = os.pidfd_open(pid)
            if node_facts.started_at(pid) != channel.birth.get("started"):
                os.close(handle)
                return
            self._handles[channel] = handle
            if raylet and (raylet not in self._raylets or _has_ended(self._raylets[raylet])):
                found = os.pidfd_open(raylet)
                if (before := self._raylets.pop(raylet, None)) is not None:
                    os.close(before)
                self._raylets[raylet] = found

    def note_kill(self, channel: ControlChannel, kill: Kill) -> None:
        """Note that a process sends a signal to another one of its job: of other jobs it can say what it likes."""
        said: Kill = {**kill, "by": channel.about.get("pid") or 0, "at": time.time()}
        self._kills[*_place(channel), kill.get("pid", 0)] = said
        while len(self._kills) > MAX_ENDED:
            del self._kills[next(iter(self._kills))]

    def note(self, channel: ControlChannel) -> None:
        """Gather what is known of a process whose channel has ended."""
        keep(self._gather(channel, time.time()))

    async def _gather(self, channel: ControlChannel, at: float) -> None:
        try:
            if channel.birth:  # else it was never introduced: nothing of it can be compared
                await self._take(channel, at)
        finally:
            if (handle := self._handles.pop(channel, None)) is not None:
                os.close(handle)
            for raylet in self._raylets.keys() - {one.birth.get("raylet") for one in self._handles}:
                os.close(self._raylets.pop(raylet))

    async def _take(self, channel: ControlChannel, at: float) -> None:
        handle = self._handles.get(channel)
        status: int | None = None
        if handle is not None:
            if not await _ends(handle, ENDS_WITHIN_S):
                return
            status = _status(handle, channel.about.get("pid") or 0)
        about, birth = channel.about, channel.birth
        ended = cast(EndedProcess, {**about, "at": at, "birth": birth})
        ended["instance"], ended["ip"] = channel.instance, channel.describe()["ip"]
        ended["words"], ended["fault"] = channel.words, channel.dump.decode(errors="replace")
        if status is not None:
            ended["status"] = status
        ended["node"] = {} if status == 0 else await self._node_facts(channel)
        ended["alone"] = not self._peers(birth.get("ns", ""))  # of a node that is lost, all have ended by now
        kill = self._kills.pop(_key(channel), Kill())
        ended["kill"] = kill if at - kill.get("at", 0.0) < KILLED_WITHIN_S else Kill()
        # Of a Ray worker the status is 0 after `sys.exit(3)`: only Ray knows the code.
        is_worker = node_facts.RAY_WORKER in str(about.get("argv"))
        if status != 0 or is_worker or not channel.words:
            ended["number"] = next(self._numbers)  # not before: who asks for higher numbers misses none
            self._kept.add(ended.get("job") or "", ended, size_of(ended))

    async def _node_facts(self, channel: ControlChannel) -> NodeFacts:
        birth, pid = channel.birth, channel.about.get("pid") or 0
        cgroup, started, raylet_pid = birth.get("cgroup", ""), birth.get("started", 0), birth.get("raylet", 0)
        if birth.get("ns") == self._here:
            facts = await asyncio.to_thread(node_facts.node_facts, pid, cgroup, started)
            raylet = self._raylets.get(raylet_pid)
            if raylet is not None and await _ends(raylet, 0.0):
                status = _status(raylet, raylet_pid)
                facts["raylet"] = "ended" if status is None else str(status)
            return facts
        # Those of its own job first: another job may say what it likes of its end.
        peers = self._peers(birth.get("ns", ""))
        for peer in sorted(peers, key=lambda peer: peer.about.get("job") != channel.about.get("job"))[:2]:
            answer = await peer.ask(NODE, NodeBody(pid=pid, cgroup=cgroup, started=started), ANSWER_S)
            if not isinstance(answer, NoAnswer):
                return answer
        return {}


def _place(channel: ControlChannel) -> tuple[str, str]:
    return channel.about.get("job") or "", channel.birth.get("ns", "")


def _key(channel: ControlChannel) -> tuple[str, str, int]:
    return *_place(channel), channel.about.get("pid") or 0


async def _describe(channel: ControlChannel) -> None:
    """Ask a new process three times who it is: Ray gives it its ids, and its actor, after it has dialled in."""
    for wait_s in DESCRIBED_AFTER_S:
        await asyncio.sleep(wait_s)
        if not channel.is_closing:
            await channel.update()


async def _ends(handle: int, limit_s: float) -> bool:
    """Wait until the process of a pidfd has ended; return whether it has."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    if _has_ended(handle):
        return True
    loop.add_reader(handle, over.set)
    try:
        await asyncio.wait_for(over.wait(), limit_s)
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(handle)
    return True


def _has_ended(handle: int) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


def _status(handle: int, pid: int) -> int | None:
    """Return the status of an ended process: from its zombie, or where its parent has reaped it, from its pidfd."""
    for _ in range(2):  # reaped after it was looked for in its pidfd, and before in its zombie
        info = bytearray(_INFO)
        struct.pack_into("=Q", info, 0, _WITH_EXIT)
        with contextlib.suppress(OSError):  # an older kernel
            fcntl.ioctl(handle, _GET_INFO, info)
            if struct.unpack_from("=Q", info)[0] & _WITH_EXIT:
                return int(struct.unpack_from("=i", info, _EXIT_CODE_AT)[0])
        if (status := node_facts.zombie_status(pid)) is not None:
            return status
    return None
