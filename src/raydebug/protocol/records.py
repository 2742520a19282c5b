"""What processes report about themselves, their pauses and their breakpoints: one definition for both ends.

Code of a job can read the cluster's token, so a process may send anything. `read` checks each field of a record against
its type and size before any of it reaches a list: a wrong field refuses the whole record, and unknown fields are
dropped. A fact that the process does not know is null, and is dropped as well.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    NotRequired,
    TypedDict,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

NAME_BYTES = 1024  # of a function, thread, actor, id
LINE_BYTES = 8 * 1024  # of a path, a command line
TEXT_BYTES = 64 * 1024  # of an exception, an expression
MAX_NUMBER = 2**63
MAX_ITEMS = 1000  # of a list

Record = TypeVar("Record")
_Read = Callable[[Any], Any]


class BadRecord(ValueError):
    """A record with a field of a wrong type or size; the text names the field and repeats nothing of its value."""


def read(given: Any, kind: type[Record], what: str = "the record") -> Record:
    """Return the fields of a record that its type has and that are not null.

    Args:
        given: what was received.
        kind: a TypedDict of this module, or one made of the same types.
        what: names the record in the reason.

    Raises:
        BadRecord: it is no object, or a field is not what its type says.
    """
    if not isinstance(given, dict):
        raise BadRecord(f"{what} is not an object")
    found = {}
    for field, read_field in _readers(cast(Any, kind)).items():
        value = given.get(field)
        if value is not None:
            try:
                found[field] = read_field(value)
            except BadRecord as error:
                raise BadRecord(f"'{field}' of {what} is not {error}") from None
    return cast(Record, found)


# Types of fields. The function in an annotation reads one value, or raises BadRecord with what was expected.


def _plain(expected: str, fits: Callable[[Any], bool]) -> _Read:
    """Return the reader of a value that stays as it is."""

    def read_plain(value: Any) -> Any:
        if not fits(value):
            raise BadRecord(expected)
        return value

    return read_plain


def text_of_at_most(limit_bytes: int) -> _Read:
    """Return the reader of a text field."""
    # Most texts are short enough whatever their characters are, and stacks have thousands.
    return _plain(
        f"a text of at most {limit_bytes} bytes",
        lambda value: (
            isinstance(value, str)
            and (4 * len(value) <= limit_bytes or len(value.encode("utf-8", "surrogatepass")) <= limit_bytes)
        ),
    )


def _is_integer(value: Any) -> bool:
    return type(value) is int and abs(value) < MAX_NUMBER


def _is_comparison(value: Any) -> bool:
    is_pair = isinstance(value, list) and len(value) == 2
    return is_pair and value[0] in (">=", "<=", "==", ">", "<") and _is_integer(value[1])


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\w[\w.:@-]{0,200}", value, re.ASCII) is not None


def _list_of(read_item: _Read) -> _Read:
    def read_list(value: Any) -> list[Any]:
        if not isinstance(value, list) or len(value) > MAX_ITEMS:
            raise BadRecord(f"a list of at most {MAX_ITEMS}")
        return [read_item(item) for item in value]

    return read_list


def _object_of(kind: type[Any]) -> _Read:
    def read_object(value: Any) -> Any:
        try:
            return read(value, kind, "it")
        except BadRecord as error:
            raise BadRecord(f"as expected: {error}") from None

    return read_object


_PLAIN: dict[Any, _Read] = {
    int: _plain("a whole number", _is_integer),
    float: _plain("a finite number", lambda value: type(value) in (int, float) and abs(value) < MAX_NUMBER),  # nor NaN
    bool: _plain("true or false", lambda value: isinstance(value, bool)),
    str: text_of_at_most(TEXT_BYTES),
}


@functools.cache
def _readers(kind: Any) -> dict[str, _Read]:
    return {field: _reader(hint) for field, hint in get_type_hints(kind, include_extras=True).items()}


def _reader(hint: Any) -> _Read:
    if get_origin(hint) is Annotated:
        reader: _Read = hint.__metadata__[0]
        return reader
    if get_origin(hint) is NotRequired:
        return _reader(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        (known,) = (member for member in get_args(hint) if member is not NoneType)
        return _reader(known)
    if get_origin(hint) is list:
        return _list_of(_reader(get_args(hint)[0]))
    return _object_of(hint) if is_typeddict(hint) else _PLAIN[hint]


Name = Annotated[str, text_of_at_most(NAME_BYTES)]
Line = Annotated[str, text_of_at_most(LINE_BYTES)]
Text = Annotated[str, text_of_at_most(TEXT_BYTES)]
Id = Annotated[str, _plain("an id", _is_id)]
"""Of a pause: it becomes a word of the commands that people paste."""
Comparison = Annotated[list[Any], _plain("a list of an operator and a number", _is_comparison)]
"""An operator and a whole number: [">=", 3]."""


# Processes. Code of a job may leave any required field out, so a reader uses `.get`.


class ProcessIds(TypedDict):
    """Which process it is, in Ray's terms too; a child of a Ray process has the ids of that process."""

    pid: int | None
    child_of: int | None
    ip: Name | None
    node_id: Name | None
    worker_id: Name | None


class ProcessRecord(ProcessIds):
    """What stays the same for the whole life of a process."""

    ppid: int | None
    python: Name | None
    argv: Line | None
    cwd: Line | None
    rank: int | None
    job: Name | None
    is_driver: bool | None
    instance: NotRequired[Name]  # identifies the process: a process id may be used again
    dials: NotRequired[int]  # counts the dial-ins of a process


class Location(TypedDict, total=False):
    """Where a thread runs: the user's innermost frame, and in `inside` what that frame has called."""

    thread: Name
    file: Text
    line: int
    function: Name
    text: Text
    inside: Text


class Work(TypedDict):
    """What a process works for, and what its active thread does now."""

    job_id: Name | None
    actor_id: Name | None
    actor: Name | None
    title: Line | None
    doing: NotRequired[Location]


class WorkRecord(ProcessRecord, Work):
    """The answer to `describe`."""


# Stacks


class StackFrame(TypedDict, total=False):
    """One frame of a stack."""

    file: Text
    line: int
    function: Name
    text: Name  # of the innermost frame and the user's: the source line, as the process reads it
    locals: list[Text]  # where they were asked for: `name = value`


class ThreadStack(TypedDict, total=False):
    """The stack of a thread, or of a task of asyncio, innermost frame first; and what it waits for, as far as known."""

    name: Name
    frames: list[StackFrame]
    digest: Name  # of the frames, in place of them: most processes of a training have the same ones
    cpu_s: float  # CPU time of the thread since it began
    objects: list[Name]  # ids of the objects that ray.get or ray.wait waits for; the first MAX_ITEMS
    polls: list[Name]  # ids of the objects in the locals of a loop that sleeps
    in_call: Name  # what C function its innermost line calls, by the object: sleep, acquire or socket
    host: Name  # address and port of the socket that it reads
    child: int  # id of the process that it waits for
    pipe: int  # inode of the pipe that it reads
    awaits: list[Name]  # the futures, tasks and threads whose end it waits for
    wants: Name  # the lock that it is about to acquire
    holds: list[Name]  # the locks of its `with` blocks, the futures that it works for, and itself
    gil: bool  # it holds Python's lock; known only of a process that is looked at from outside


class KnownFrames(TypedDict, total=False):
    """The frames that a digest stands for."""

    digest: Name
    frames: list[StackFrame]


class FramesRecord(TypedDict, total=False):
    """The answer to `frames`; digests that the process does not know any more are left out."""

    known: list[KnownFrames]


def digest_of(frames: list[StackFrame]) -> str:
    """Return the digest of frames. The gateway checks it: a process cannot put other frames in place of another's."""
    text = json.dumps([[frame.get("file"), frame.get("line"), frame.get("function")] for frame in frames])
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]


class CollectiveCall(TypedDict, total=False):
    """A collective that a rank has called, in torch's flight recorder."""

    backend: Name  # gloo or nccl; a process group may have both
    seq: int  # counts the collectives of the group with this backend
    op: Name
    sizes: Name  # of its inputs
    elements: int  # of all inputs together
    dtypes: Name
    done: bool


RAY_COLLECTIVE = "ray.util.collective"
"""Description of a group of Ray's own: it counts no calls, and its members may have different roles."""


class CollectiveGroup(TypedDict, total=False):
    """A process group of torch or of `ray.util.collective`, and the last collectives of this rank in it."""

    name: Name
    description: Name
    rank: int  # of this process, in the whole training
    ranks: list[int]  # its members; the first MAX_ITEMS
    full: bool  # the recorder has overwritten its oldest calls
    calls: list[CollectiveCall]


class OpenCall(TypedDict, total=False):
    """The outermost call of the user's code in a thread that has not returned since it was first seen."""

    thread: Name  # as ThreadStack names it
    function: Name
    file: Text
    line: int
    age_s: float


class StacksFacts(TypedDict, total=False):
    """What a process says in `stacks` and lists of stacks repeat."""

    world: int | None  # ranks of its training group
    threads: list[ThreadStack]
    left_out: int  # threads and tasks beyond the limit; one of each kind of stack is listed first
    calls: list[OpenCall]  # one for each thread that is in one, with the age since the first look at it
    collectives: list[CollectiveGroup]  # of torch's process groups, and of ray.util.collective
    listens: list[int]  # TCP ports
    pipes: list[int]  # inodes
    children_cpu_s: float  # of child processes that have ended
    io_bytes: int  # written to files and pipes, and read from disks


class StacksRecord(WorkRecord, StacksFacts):
    """The answer to `stacks`: the thread that runs the user's code comes first."""


# Pauses


class Watchdog(TypedDict, total=False):
    """A time limit of torch that ends a process which is paused for longer."""

    name: Name
    after_s: float


class MetricHistory(TypedDict, total=False):
    """The last values of a metric, oldest first; as text, because JSON knows neither NaN nor infinity."""

    metric: Name
    steps: list[int]
    values: list[Name]


class TripwireRecord(TypedDict, total=False):
    """Why a tripwire tripped."""

    text: Text
    history: list[MetricHistory]


class Stop(TypedDict):
    """Where and why a thread is suspended."""

    kind: Name | None
    file: Text | None
    line: int | None
    function: Name | None
    thread: Name | None
    exception: Text | None
    where: Text | None  # the breakpoint from outside or the tripwire, as the user wrote it
    tripwire: TripwireRecord | None
    rank: int | None
    step: int | None


class Owner(TypedDict):
    """The task and the actor of a suspended thread."""

    task: Name | None
    task_id: Name | None
    attempt: int | None
    actor: Name | None
    actor_id: Name | None


class Limits(TypedDict):
    """What limits a pause."""

    compiled: bool | None
    watchdog: Watchdog | None


class PauseRecord(Stop, Owner, Limits):
    """A suspended thread. What the list of pauses shows is declared above, the rest here."""

    pid: int | None
    job_id: Name | None
    expires_s: float | None  # seconds without a client after which it resumes
    request: NotRequired[Name | None]  # the request that it answers
    nth: NotRequired[int]  # counts the announced pauses of the process; the same when it dials in again
    stood_s: NotRequired[float]  # seconds for which it was suspended before this dial-in


class Announcement(TypedDict, total=False):
    """Body of PAUSE_EVENT."""

    threadId: int
    record: PauseRecord


class BrokenOff(TypedDict, total=False):
    """Body of BROKEN_OFF_EVENT."""

    threadId: int
    reason: Text


class Refusal(TypedDict, total=False):
    """The answer to `pause`: why it is impossible."""

    cause: Text


class JobLine(TypedDict):
    """Arguments of SAY_REQUEST: the paused thread that writes a line, about a pause at `at` (file:line)."""

    threadId: int
    text: str
    at: str


# Breakpoints from outside

Policy = TypedDict("Policy", {
    "if": Text, "log": Text, "every": int, "max": int, "timeout_s": float, "rank": list[int], "step": list[Comparison],
}, total=False)  # fmt: skip
"""The conditions of a breakpoint."""


class BreakpointSpec(TypedDict, total=False):
    """A breakpoint from outside; `module` or `file`, and `line` or `function`, say where it is."""

    id: Name
    where: Text  # as the user wrote it
    module: Name
    file: Text
    line: int
    function: Name
    source: Text  # the file on the node
    policy: Policy
    job: Name | None  # None: every job
    since: float


class KnownBreakpoints(TypedDict, total=False):
    """Body of KNOWN."""

    breaks: list[BreakpointSpec]
    set: list[Name]


class BreakpointReport(TypedDict, total=False):
    """Body of BREAK: the state of a breakpoint in a process."""

    id: Name
    state: Name
    message: Text


# What the gateway itself reads of pydevd's messages; clients get them whole.


class ThreadEvent(TypedDict, total=False):
    """Body of `thread`."""

    threadId: int
    reason: Name


class StoppedEvent(TypedDict, total=False):
    """Body of `stopped`; its reason, of any length, is passed on unread."""

    threadId: int


class Source(TypedDict, total=False):
    """A source file of a frame."""

    path: Text


class Frame(TypedDict, total=False):
    """The innermost frame in the response to `stackTrace`."""

    id: int
    name: Text
    line: int
    source: Source
