"""The snapshot of a crash: one JSON document, compressed with gzip, that opens without Ray, torch or the program.

A worker writes it (worker/snapshot.py), the gateway passes it on unread, and the host reads it (snapshot/). It holds no
pickle: to open a file never runs code.
"""

from __future__ import annotations

import re
from typing import Annotated, TypedDict

from raydebug.protocol.records import Name, StacksRecord, Text, text_of_at_most

FORMAT, VERSION = "raydebug-snapshot", 1
SUFFIX = ".snapshot.gz"
MAX_BYTES = 2_000_000  # of the document, before compression
MAX_OF_JOB = 50  # snapshots that are kept of one job: the first of each kind of crash and rank

MAX_FILE_BYTES = 1_500_000  # of the file
IS_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")  # it names a file on the host

RAISED, CAUSE, CONTEXT, MEMBER = "raised", "cause", "context", "member"
"""Relations of an exception to its parent: none; `raise ... from`; raised while the other was handled; in a group."""


class SnapshotSummary(TypedDict, total=False):
    """What lists show of a snapshot; the message that carries one begins with it."""

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
    at: float  # seconds since 1970
    same: Name  # equal for crashes of one kind: type of the exception and functions of its stack


class SnapshotMessage(TypedDict, total=False):
    """Body of SNAPSHOT: what an OFFER cannot have yet, a message without secrets, and the file in base64."""

    message: Text
    data: Annotated[str, text_of_at_most(MAX_FILE_BYTES * 4 // 3 + 4)]


class TensorSummary(TypedDict, total=False):
    """What is known of a tensor or an array; without values where reading them would wait for a GPU."""

    shape: list[int]
    dtype: str
    device: str
    stride: list[int]
    requires_grad: bool
    bytes: int
    storage: str  # equal for tensors that share memory
    sampled: int  # elements that the statistics are of; the number of elements if of all
    nan: int
    inf: int
    min: float
    max: float
    mean: float
    first: list[float | str]  # values; "nan", "inf" and "-inf" as text
    unread: str  # why there are no values


class SavedValue(TypedDict, total=False):
    """One value; values refer to each other by their index in `SnapshotDocument.values`."""

    type: str  # qualified name: `dict`, `torch.Tensor`, `my.module.Batch`
    text: str  # of a scalar: as Python writes it; of a str: its beginning; of a class, function or module: its name
    length: int  # of a str, bytes or container, in full
    items: list[int]  # of a list, tuple or set: its first ones
    pairs: list[tuple[int, int]]  # of a dict: its first ones, key and value
    attributes: dict[str, int]  # of an object: its __dict__ and slots
    tensor: TensorSummary
    redacted: bool  # it was a secret
    cut: str  # why less is here than there was: `depth`, `items`, `time`, `size`


class SavedFrame(TypedDict, total=False):
    """One frame."""

    file: str
    line: int
    function: str
    arguments: list[str]  # names, in order; the other locals follow them in `locals`
    locals: dict[str, int]
    source_from: int  # number of the first line in `source`
    source: list[str]
    cut: str


class SavedException(TypedDict, total=False):
    """One exception of the chain."""

    type: str
    text: str
    relation: str
    parent: int  # index of the exception that it is the cause, context or member of
    frames: list[int]  # indices in `SnapshotDocument.frames`, innermost first
    remote: str  # a traceback as text that Ray brought along


class SnapshotDocument(TypedDict, total=False):
    """The whole file."""

    format: str
    version: int
    summary: SnapshotSummary
    process: StacksRecord  # what the process is; without threads
    thread: str
    step: int | None
    argv: list[str]
    versions: dict[str, str]  # python, raydebug, ray, torch, vllm, verl
    exceptions: list[SavedException]  # the raised one first; empty for a pause
    frames: list[SavedFrame]  # of the raised exception, or of the paused thread, innermost first; then those of others
    values: list[SavedValue]
