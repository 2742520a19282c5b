"""What is known of the end of a process: what it said last, and what its node and the kernel still know of it."""

from __future__ import annotations

from typing import TypedDict

from raydebug.protocol.questions import NodeFacts
from raydebug.protocol.records import Line, Name, ProcessRecord, Text, Work

MAX_ENDED = 500  # of a job


class Birth(TypedDict, total=False):
    """Body of BIRTH: what is compared after the end of the process."""

    ns: Name  # the machine's boot and the pid namespace: equal for processes that see each other
    started: int  # clock ticks since boot: a process id may be used again
    cgroup: Line  # folder with its memory counters; empty without one
    oom_kills: int  # by the kernel, in this cgroup so far
    node_oom_kills: int
    raylet: int  # process id of its raylet
    scheduler: Name  # whose job this is, if its variables say so


class LastWords(TypedDict, total=False):
    """Body of BYE: how a process ends by itself. It has no values, so of exceptions only an OSError has its text."""

    how: Name  # EXIT or OS_EXIT (messages.py)
    code: int  # of OS_EXIT
    error: Name  # type of the exception that ended the program
    reason: Name  # of an OSError: its text without the file
    place: Line  # file:line function
    thread: Name


class Kill(TypedDict, total=False):
    """Body of KILLS: a process of the job sends a signal to a process of its namespace, by `os.kill`."""

    pid: int
    signal: int
    place: Line  # file:line function
    by: int  # process id of the sender; the gateway adds it, and the time in seconds since 1970
    at: float


class EndedProcess(ProcessRecord, Work, total=False):
    """A process whose control channel has ended, as GET /deaths/JOB/AFTER lists it."""

    number: int  # higher than those of ends that were listed before
    at: float  # seconds since 1970
    status: int  # as waitpid gives it
    words: LastWords
    kill: Kill
    fault: Text  # what faulthandler wrote
    birth: Birth
    node: NodeFacts
    is_back: bool  # it has connected again, and was no end
    alone: bool  # no other process of its node still answers
