"""The format of snapshots: one JSON document, compressed with gzip. It opens without Ray, torch or the program.

A worker writes it (worker/snapshot.py), the gateway stores it without parsing it, and the host reads it (snapshot/). It
contains no pickle, so opening a file never runs code.
"""

from __future__ import annotations

import re
from typing import Annotated, TypedDict

from raydebug.protocol.records import Name, Text, WorkRecord, text_of_at_most

FORMAT, VERSION = "raydebug-snapshot", 1
SUFFIX = ".snapshot.gz"
MAX_BYTES = 2_000_000  # of the document, before compression
MAX_OF_JOB = 50  # snapshots that are kept of one job: the first of each kind of crash and rank

MAX_FILE_BYTES = 1_500_000  # of the file
IS_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")  # it becomes a file name on the host

RAISED, CAUSE, CONTEXT, MEMBER = "raised", "cause", "context", "member"
"""What an exception is to its parent: it has none; its `__cause__`; its `__context__`; a member of the group."""

CONTENT = {"omegaconf": ("_content", "_val"), "tensordict": ("_tensordict",)}
"""By package, the attributes in which configs and batches keep their content; of such an object only these are saved.

Sources: omegaconf 2.3 basecontainer.py and nodes.py, tensordict 0.10 _td.py. Tested by tests/cpu/test_open.py.
"""


NUMPYS = "numpy "


class SnapshotSummary(TypedDict, total=False):
    """The facts about a snapshot that lists show; a process offers it to the gateway before it sends the file."""

    id: Name  # unique in its job; the name of its file without SUFFIX
    job: Name | None  # submission id
    kind: Name  # "crash", or "pause" for one made on request
    exception: Name  # type of the exception that was raised; empty for a pause
    message: Text
    file: Text  # where it was raised
    line: int
    function: Name
    rank: int | None
    pid: int
    actor: Name | None
    task: Name | None
    at: float  # seconds since 1970
    same: Name  # equal for crashes of one kind: type of the exception and functions of its stack


class SnapshotMessage(TypedDict, total=False):
    """Body of SNAPSHOT: the message without secrets, which the OFFER cannot contain yet, and the file in base64."""

    message: Text
    data: Annotated[str, text_of_at_most(MAX_FILE_BYTES * 4 // 3 + 4)]


class TensorSummary(TypedDict, total=False):
    """Facts about a tensor or an array; it has no values if reading them would wait for a GPU."""

    shape: list[int | str]  # text is a symbol: a nested tensor has this size for each row
    dtype: str
    device: str
    stride: list[int | str]
    requires_grad: bool
    bytes: int
    storage: str  # equal for tensors that share memory; an array's begins with NUMPYS
    sampled: int  # number of elements that the statistics were computed from
    nan: int
    inf: int
    min: float
    max: float
    mean: float
    first: list[float | str]  # the first values; "nan", "inf" and "-inf" as text
    unread: str  # why there are no values


class SavedValue(TypedDict, total=False):
    """One value; values refer to each other by their index in `SnapshotDocument.values`."""

    type: str  # qualified name: `dict`, `torch.Tensor`, `my.module.Batch`
    text: str  # repr of a scalar; beginning of a str; name of a class, function or module
    length: int  # full length of a str, bytes or container
    items: list[int]  # the first items of a list, tuple or set
    pairs: list[tuple[int, int]]  # the first keys and values of a dict
    attributes: dict[str, int]  # `__dict__` and slots of an object
    tensor: TensorSummary
    redacted: bool  # it was a secret
    cut: str  # the limit that left parts out: `depth`, `items`, `time`, `size`


class SavedFrame(TypedDict, total=False):
    """One frame."""

    file: str
    line: int
    function: str
    arguments: list[str]  # names in order; `locals` has them first
    locals: dict[str, int]
    source_from: int  # number of the first line in `source`
    source: list[str]
    cut: str


class SavedException(TypedDict, total=False):
    """One exception of the chain."""

    type: str
    text: str
    relation: str
    parent: int  # index of the exception whose cause, context or member it is
    frames: list[int]  # indices in `SnapshotDocument.frames`, innermost first
    left_out: int  # how many frames in the middle of its traceback are not saved
    remote: str  # the traceback of another process, as the text that Ray adds to an error


class LiveLine(TypedDict):
    """What a line of the program has allocated and not freed."""

    line: str  # FILE:LINE FUNCTION
    count: int
    bytes: int


class GpuSummary(TypedDict, total=False):
    """A snapshot of the allocator, in bytes."""

    reserved: int
    live: int
    waiting: int  # freed, but a stream may still use it
    free: int
    largest_free: int  # block in `free`
    lines: list[LiveLine]  # the largest first
    asked: int  # by the allocation that failed
    asked_at: str
    device_free: int  # when it failed


class SnapshotDocument(TypedDict, total=False):
    """The whole file."""

    format: str
    version: int
    summary: SnapshotSummary
    process: WorkRecord
    thread: str
    step: int | None
    argv: list[str]
    versions: dict[str, str]  # python, raydebug, ray, torch, vllm, verl
    exceptions: list[SavedException]  # the raised one first; empty for a pause
    frames: list[SavedFrame]  # of the raised exception or the paused thread, innermost first; then of the others
    values: list[SavedValue]
    gpu_memory: GpuSummary  # of an out of memory, if torch recorded (`run --gpu-history`)
