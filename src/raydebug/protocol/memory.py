"""What a process says of its memory when it is asked; all sizes are in bytes."""

from __future__ import annotations

from typing import TypedDict

from raydebug.protocol.records import Name, Text


class DeviceMemory(TypedDict, total=False):
    """A GPU of the process's node, and what the process has of it."""

    gpu: Name  # the driver's UUID
    used: int  # of all processes
    total: int
    own: int  # of this process, by the driver; left out where it knows the process by another id
    reserved: int  # by torch's allocator
    pool: int  # of vLLM's allocator that can sleep, which torch does not count
    asleep: int  # the part of `pool` that sleeps, and is not on the GPU


class NodeMemory(TypedDict, total=False):
    """The host memory of a node, and of the container of the process."""

    total: int
    available: int
    cached: int
    shared: int
    shm: int  # in /dev/shm
    limit: int  # of the cgroup; left out without one
    used: int  # of the cgroup


class ProcessMemory(TypedDict, total=False):
    """The answer to `memory`."""

    rss: int
    pss: int  # memory that processes share is divided between them
    shared: int  # in `pss`: shared memory
    peak: int  # of `rss`
    peak_phase: Name  # of the training, in which the peak was reached
    parent: int  # process id
    forked: Text  # the line that made this process a fork of its parent
    node: NodeMemory
    gpus: list[DeviceMemory]


class Holder(TypedDict, total=False):
    """What is held under one name; `[*]` stands for all items of a container."""

    holder: Text
    kind: Name  # tensor, cuda tensor, array, graph, mapped, bytes or objects
    what: Name  # shape and type of the first one
    count: int
    bytes: int


class Census(TypedDict, total=False):
    """The answer to `census`: who holds the memory of a process, the largest first."""

    holders: list[Holder]
    cut: bool  # the time, or the memory that the walk may take, was over before all was seen
    left: int  # bytes that the process has more after the walk than before it
