"""Find and read snapshot files. Reading one has bounded costs; a file that breaks the format is refused."""

from __future__ import annotations

import functools
import itertools
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

from raydebug import render
from raydebug.errors import RaydebugError, UsageError
from raydebug.protocol.names import name_ranks
from raydebug.protocol.snapshot import FORMAT, MAX_BYTES, SUFFIX, VERSION, SnapshotDocument, SnapshotSummary
from raydebug.runs.folder import LAST, SNAPSHOTS, find_folder, runs_dir
from raydebug.settings.files import NotPlainText, read_bounded

READ_BYTES = 2 * MAX_BYTES  # of the file, and of its content after decompression; raydebug writes less
MOST_LINES = 1_000_000  # of a source file: lines before the saved part are shown as blank lines
MOST_FRAMES = 2_000  # of all exceptions together; raydebug writes less than half of it
MOST_PARTS = 1_000  # of one value; raydebug writes 40
MOST_DIMENSIONS = 100  # of a tensor; torch has 64
MAX_NUMBER = 2**63


class _Malformed(ValueError):
    """A field of the document is not as protocol/snapshot.py says; the text names the field."""


@dataclass(frozen=True)
class SnapshotFile:
    """A snapshot file and its summary."""

    path: Path
    summary: SnapshotSummary

    @property
    def id(self) -> str:
        return self.path.name.removesuffix(SUFFIX)

    @property
    def place(self) -> str:
        """Where it crashed: `reward.py:45 reward`."""
        name = Path(self.summary.get("file", "?")).name
        return f"{name}:{self.summary.get('line', 0)} {self.summary.get('function', '')}"


def find_snapshots(target: str = LAST) -> list[SnapshotFile]:
    """Return the snapshots of a file, a folder or a run, the first crash first; a damaged file is skipped with a line.

    Raises:
        RaydebugError: there is no such run, or the file named is no snapshot.
    """
    path = Path(target)
    if target.endswith(SUFFIX) or (path.exists() and not path.is_dir()):
        return [SnapshotFile(path, _read_summary(path))]
    known = path if "/" in target else runs_dir() / target  # a job that `run` did not start has no record
    folder = known if known.is_dir() else find_folder(target)
    found = []
    for path in (folder / SNAPSHOTS if (folder / SNAPSHOTS).is_dir() else folder).glob(f"*{SUFFIX}"):
        try:
            found.append(SnapshotFile(path, _read_summary(path)))
        except RaydebugError as failure:
            render.say(render.visible(f"skipped: {failure.cause}"))
    return sorted(found, key=lambda one: (one.summary.get("at", 0.0), one.id))


def choose_snapshot(found: Sequence[SnapshotFile], target: str, pick: str | None = None) -> SnapshotFile:
    """Return the snapshot to open: the first in time, or the one that is picked.

    Args:
        found: the snapshots of the target.
        target: as the user named it.
        pick: the id of one, or the number of its group in `raydebug open --list`, from 1.

    Raises:
        RaydebugError: there is none, or `pick` names none.
    """
    if not found:
        raise RaydebugError(
            f"'{target}' has no snapshot", cause="none of its processes crashed",
            fix=f"see the report of the run: {render.command('raydebug', 'report', target)}", code="snapshot.none",
        )  # fmt: skip
    groups = group_same(found)
    numbered = {str(number): same[0] for number, same in enumerate(groups, start=1)}
    chosen = found[0] if pick is None else (numbered | {snapshot.id: snapshot for snapshot in found}).get(pick)
    if chosen is None:
        raise UsageError(
            f"'{target}' has no snapshot '{pick}'", cause=f"it has 1 to {len(groups)}; the first is {found[0].id}",
            fix=f"`{render.command('raydebug', 'open', '--list', target)}` shows them",
            code="snapshot.unknown",
        )  # fmt: skip
    return chosen


def group_same(found: Sequence[SnapshotFile]) -> list[list[SnapshotFile]]:
    """Return the snapshots in groups of equal crashes, the group with the first crash first."""
    groups: dict[str, list[SnapshotFile]] = {}
    for snapshot in found:
        groups.setdefault(snapshot.summary.get("same") or snapshot.id, []).append(snapshot)
    return list(groups.values())


def name_processes(same: Sequence[SnapshotFile]) -> str:
    """Return which processes a group of snapshots is of: `WorkerDict ranks 0-3,7`, or their process ids."""
    actor = (same[0].summary.get("actor") or "").partition(" ")[0]
    if not actor and len({snapshot.summary.get("task") for snapshot in same}) == 1:
        actor = same[0].summary.get("task") or ""
    if ranks := {rank for snapshot in same if (rank := snapshot.summary.get("rank")) is not None}:
        return name_ranks(ranks, actor)
    pids = sorted({snapshot.summary.get("pid", 0) for snapshot in same})
    more = f" and {len(pids) - 4} more" if len(pids) > 4 else ""
    return f"{actor} pid {', '.join(map(str, pids[:4]))}{more}".strip()


def describe_groups(found: Sequence[SnapshotFile]) -> list[dict[str, str]]:
    """Return the groups of equal crashes in words, the first one first; `pick` is the number that opens one."""
    return [
        {
            "pick": str(number),
            "exception": same[0].summary.get("exception") or same[0].summary.get("kind", "?"),
            "message": same[0].summary.get("message", ""),
            "where": same[0].place,
            "who": name_processes(same),
            "at": render.moment(same[0].summary.get("at")),
            "id": same[0].id,
        }
        for number, same in enumerate(group_same(found), start=1)
    ]


def read_document(path: Path) -> SnapshotDocument:
    """Return the document of a snapshot, with every field checked.

    Raises:
        RaydebugError: it cannot be read, is no snapshot, is damaged, or of a newer version.
    """
    raw = _unpack(path)
    try:
        document = cast(SnapshotDocument, _check(raw, SnapshotDocument, "the document"))
        _check_indices(document)
    except (_Malformed, RecursionError) as error:
        raise _damaged(path, str(error)) from error
    return document


def _read_summary(path: Path) -> SnapshotSummary:
    raw = _unpack(path)
    try:
        return cast(SnapshotSummary, _check(raw.get("summary"), SnapshotSummary, "summary"))
    except _Malformed as error:
        raise _damaged(path, str(error)) from error


def _unpack(path: Path) -> dict[str, Any]:
    """Return what is in a file, when it is a snapshot of a version that can be read."""
    try:
        packed = read_bounded(path, bytes_max=READ_BYTES, what="a snapshot")
    except NotPlainText as error:
        raise UsageError(
            "the snapshot cannot be read", cause=f"{path}: {error.cause}", code="snapshot.unreadable",
            fix="`raydebug open --list RUN` lists the snapshots of a run",
        ) from error  # fmt: skip
    if not packed.startswith(b"\x1f\x8b"):  # RFC 1952, 2.3.1
        raise _not_ours(path, "it does not begin like a file of gzip" if packed else "it is empty")
    unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        text = unpacker.decompress(packed, READ_BYTES)
    except zlib.error as error:
        raise _damaged(path, f"it cannot be decompressed: {error}") from error
    if not unpacker.eof:
        longer = len(text) >= READ_BYTES
        raise _damaged(path, f"it holds more than {READ_BYTES:,} bytes" if longer else "its end is missing")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _not_ours(path, f"it holds no JSON: {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise _not_ours(path, f"its format is not '{FORMAT}'")
    if type(found.get("version")) is not int or found["version"] > VERSION:
        raise UsageError(
            "the snapshot is of a newer raydebug", code="snapshot.version",
            cause=f"{path}: version {str(found.get('version'))[:20]}, this raydebug reads up to {VERSION}",
            fix="open it with the raydebug that wrote it, or a newer one",
        )  # fmt: skip
    return found


def _not_ours(path: Path, why: str) -> RaydebugError:
    return UsageError(
        "this file is not a snapshot of raydebug", cause=f"{path}: {why}", code="snapshot.not-ours",
        fix=f"name a file that ends in {SUFFIX}, or a run; `raydebug open --list` shows them",
    )  # fmt: skip


def _damaged(path: Path, why: str) -> RaydebugError:
    return UsageError(
        "the snapshot is damaged", cause=f"{path}: {why}", code="snapshot.damaged",
        fix="copy it again from where it was written; `raydebug open --list RUN` lists the others",
    )  # fmt: skip


# Checks: protocol/snapshot.py is the only description of the format.


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _check(value: Any, kind: Any, field: str) -> Any:
    """Return a value of JSON that is of a kind, or _Malformed; unknown fields and those that are null are dropped."""
    origin, kinds = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        kinds = tuple(kind for kind in kinds if kind is not NoneType)
        origin, kind = (get_origin(kinds[0]), kinds[0]) if len(kinds) == 1 else (None, kind)
    if is_typeddict(kind) and isinstance(value, dict):
        given = ((name, value.get(name), hint) for name, hint in _fields(kind).items())
        return {name: _check(one, hint, name) for name, one, hint in given if one is not None}
    if origin is list and isinstance(value, list):
        return [_check(item, kinds[0], field) for item in value]
    if origin is dict and isinstance(value, dict):
        return {name: _check(one, kinds[1], field) for name, one in value.items()}
    if origin is tuple and isinstance(value, list) and len(value) == len(kinds):
        return tuple(_check(one, hint, field) for one, hint in zip(value, kinds, strict=True))
    plain = kinds if origin is None and kinds else (kind,)
    if (type(value) in plain and type(value) is not int) or (
        type(value) is int and abs(value) < MAX_NUMBER and (int in plain or float in plain)
    ):
        return value
    raise _Malformed(f"'{field}' is invalid")


def _check_indices(document: SnapshotDocument) -> None:
    """Check every index, and that no list is missing."""
    missing = {"summary", "values", "frames", "exceptions"} - document.keys()
    if missing:
        raise _Malformed(f"'{min(missing)}' is missing")
    values, frames, exceptions = len(document["values"]), len(document["frames"]), len(document["exceptions"])

    def inside(field: str, indices: Iterable[int], count: int) -> None:
        if not all(0 <= index < count for index in indices):
            raise _Malformed(f"'{field}' is out of range")

    inside("frames", (frames, sum(len(error.get("frames", ())) for error in document["exceptions"])), MOST_FRAMES)
    for value in document["values"]:
        for part in ("items", "pairs", "attributes"):
            inside(part, (len(value.get(part, ())),), MOST_PARTS)  # type: ignore[arg-type]
        inside("items", value.get("items", ()), values)
        inside("pairs", itertools.chain.from_iterable(value.get("pairs", ())), values)
        inside("attributes", value.get("attributes", {}).values(), values)
        inside("shape", (len(value.get("tensor", {}).get("shape", ())),), MOST_DIMENSIONS)
    for frame in document["frames"]:
        inside("locals", frame.get("locals", {}).values(), values)
        inside("line", (frame.get("line", 0), frame.get("source_from", 0)), MOST_LINES)
    for exception in document["exceptions"]:
        inside("frames", exception.get("frames", ()), frames)
        inside("parent", (exception.get("parent", 0),), exceptions)
