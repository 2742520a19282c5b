"""A file's name in the cluster and its name at the client, where the two differ (`pathMappings`). Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from raydebug.dap.wire import Message
from raydebug.gateway.refusals import Refused

# Above what pydevd itself hands out, which counts from 1.
FIRST_REFERENCE = 1_000_000


class PathMap:
    """The mappings that one client gave; without any, every name stays as it is.

    A file that no mapping covers is only in the cluster: it gets a source reference, so that the client asks for its
    text instead of looking for it on its own disk. pydevd does the same with mappings of its own
    (Source: debugpy 1.8.22, pydevd_file_utils.py:891), but those hold for all clients of a process.

    Args:
        pairs: client's folder, cluster's folder.
    """

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs = pairs
        self._references: dict[str, int] = {}
        self._files: dict[int, str] = {}

    def __bool__(self) -> bool:
        """Say whether any name differs."""
        return bool(self._pairs)

    @classmethod
    def of(cls, arguments: Message) -> PathMap:
        """Read the mappings out of the arguments of an `attach`.

        Raises:
            Refused: they are not as launch.json has them.
        """
        given = arguments.get("pathMappings") or []
        try:
            pairs = [(_root(one["localRoot"]), _root(one["remoteRoot"])) for one in given]
        except (TypeError, KeyError, AttributeError) as error:
            fix = '"pathMappings": [{"localRoot": "...", "remoteRoot": "..."}]'
            raise Refused("attach.bad-mappings", "the pathMappings cannot be read", fix) from error
        return cls(pairs)

    def to_cluster(self, path: str) -> str:
        """Return what a client's file is called in the cluster."""
        for local, remote in sorted(self._pairs, key=lambda pair: -len(pair[0])):
            rest = _below(path, local)
            if rest is not None:
                return str(PurePosixPath(remote, *rest.replace("\\", "/").split("/")))
        return path

    def to_client(self, path: str) -> str | None:
        """Return what a file of the cluster is called at the client; None for one that is only in the cluster."""
        if not self._pairs:
            return path
        for local, remote in sorted(self._pairs, key=lambda pair: -len(pair[1])):
            rest = _below(path, remote)
            if rest is not None:
                separator = "\\" if "\\" in local and "/" not in local else "/"
                return separator.join([local.rstrip("/\\"), *rest.split("/")]) if rest else local
        return None

    def translate_arguments(self, arguments: Message) -> None:
        """Put the cluster's names into a request's arguments."""
        source = arguments.get("source")
        if isinstance(source, dict) and isinstance(source.get("path"), str):
            arguments["source"] = {**source, "path": self.to_cluster(source["path"])}

    def translate_body(self, body: Any) -> Any:
        """Return the body of a response or an event with the client's names; other clients are sent the same body."""
        if not self._pairs or not isinstance(body, dict):
            return body
        body = copy.deepcopy(body)
        for source in _sources(body):
            path = source.get("path")
            if not isinstance(path, str) or not path.startswith("/"):  # <string>, <frozen ...>
                continue
            here = self.to_client(path)
            if here is not None:
                source["path"] = here
            elif not source.get("sourceReference"):
                source["sourceReference"] = self._reference(path)
        return body

    def file_of(self, reference: object) -> str | None:
        """Return the cluster's file that a source reference stands for."""
        return self._files.get(reference) if isinstance(reference, int) else None

    def _reference(self, path: str) -> int:
        if path not in self._references:
            self._references[path] = FIRST_REFERENCE + len(self._references)
            self._files[self._references[path]] = path
        return self._references[path]


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
