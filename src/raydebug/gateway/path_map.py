"""Path mappings of a client: names of its own files and of the cluster's. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from raydebug.gateway.client_requests import Refused
from raydebug.protocol.messages import COPIES
from raydebug.protocol.wire import Message

# Above the references of pydevd, which count from 1.
FIRST_REFERENCE = 1_000_000


class PathMap:
    """The mappings of one client; without any, names stay unchanged.

    A file without one of the client's `pathMappings` exists only in the cluster: it gets a source reference, so that
    the client requests its text instead of opening its own file. pydevd does the same with its own mappings (Source:
    debugpy 1.8.22, pydevd_file_utils.py:891), but those apply to all clients of a process. Without `pathMappings` a
    file outside of the copies has one name everywhere.

    Args:
        pairs: client's folder, cluster's folder, of `pathMappings`. A client's folder may be in several: it is that of
            the pair by which a file of the process was last named, at first that of the first pair.
        copies: such pairs of COPIES. A process has one copy, that by which a file was last named; a folder in that one
            may have copies of its own.
    """

    def __init__(self, pairs: list[tuple[str, str]], copies: Sequence[tuple[str, str]] = ()) -> None:
        self._pairs = pairs
        self._copies = [*copies]
        self._copy: list[tuple[str, str]] = []
        self._references: dict[str, int] = {}
        self._files: dict[int, str] = {}

    @classmethod
    def of(cls, arguments: Message) -> PathMap:
        """Read the mappings from the arguments of `attach`.

        Raises:
            Refused: they do not have the form of launch.json.
        """
        return cls(_pairs(arguments.get("pathMappings")), _pairs(arguments.get(COPIES)))

    def replace_copies(self, given: object) -> None:
        """Use the copies that there are now: the pause may be of a job that came later than the client.

        Raises:
            Refused: they cannot be read.
        """
        self._copies = _pairs(given)

    def to_cluster(self, path: str) -> str:
        """Return the name in the cluster of a client's file."""
        ordered = [sorted(pairs, key=lambda pair: -len(pair[0])) for pairs in (self._pairs, self._copies)]
        for local, remote in (*ordered[0], *self._copy, *ordered[1]):
            rest = _below(path, local)
            if rest is not None:
                return str(PurePosixPath(remote, *rest.replace("\\", "/").split("/")))
        return path

    def to_client(self, path: str) -> str | None:
        """Return the client's name of a file of the cluster; None if no mapping covers it."""
        for local, remote in sorted((*self._pairs, *self._copies), key=lambda pair: -len(pair[1])):
            rest = _below(path, remote)
            if rest is not None:
                if (local, remote) in self._copies:
                    self._copy = [(local, remote)]
                self._pairs.sort(key=lambda pair: pair != (local, remote))
                separator = "\\" if "\\" in local and "/" not in local else "/"
                return separator.join([local.rstrip("/\\"), *rest.split("/")]) if rest else local
        return None if self._pairs else path

    def translate_arguments(self, arguments: Message) -> None:
        """Translate the file names in a request's arguments, in place."""
        source = arguments.get("source")
        if isinstance(source, dict) and isinstance(source.get("path"), str):
            arguments["source"] = {**source, "path": self.to_cluster(source["path"])}

    def translate_body(self, body: Any) -> Any:
        """Return a copy of a response's or event's body with the client's names."""
        if not (self._pairs or self._copies) or not isinstance(body, dict):
            return body
        body = copy.deepcopy(body)
        for source in _sources(body):
            path = source.get("path")
            if not isinstance(path, str) or not path.startswith("/"):  # <string>, <frozen ...>
                continue
            here = self.to_client(path)
            if here == path:
                continue
            if here is not None:
                source["path"], source["adapterData"] = here, path  # DAP: the client leaves it as it is
            elif not source.get("sourceReference"):
                source["sourceReference"] = self._reference(path)
        return body

    def file_of(self, reference: object) -> str | None:
        """Return the cluster's file of a source reference."""
        return self._files.get(reference) if isinstance(reference, int) else None

    def _reference(self, path: str) -> int:
        if path not in self._references:
            self._references[path] = FIRST_REFERENCE + len(self._references)
            self._files[self._references[path]] = path
        return self._references[path]


def _pairs(given: Any) -> list[tuple[str, str]]:
    try:
        return [(_root(pair["localRoot"]), _root(pair["remoteRoot"])) for pair in given or []]
    except (TypeError, KeyError, AttributeError) as error:
        fix = '"pathMappings": [{"localRoot": "...", "remoteRoot": "..."}]'
        raise Refused("attach.bad-mappings", "the pathMappings cannot be read", fix) from error


def _root(text: str) -> str:
    return text.rstrip("/\\") or "/"


def _below(path: str, root: str) -> str | None:
    if path == root:
        return ""
    prefix = root if root.endswith("/") else root + ("\\" if "\\" in root and "/" not in root else "/")
    return path[len(prefix) :] if path.startswith(prefix) else None


def _sources(body: Message) -> Iterator[Message]:
    holders = [body, body.get("breakpoint"), *_listed(body, "stackFrames"), *_listed(body, "breakpoints")]
    for holder in holders:
        source = holder.get("source") if isinstance(holder, dict) else None
        if isinstance(source, dict):
            yield source


def _listed(body: Message, name: str) -> list[Any]:
    found = body.get(name)
    return found if isinstance(found, list) else []
