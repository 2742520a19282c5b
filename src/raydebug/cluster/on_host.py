"""`python -m raydebug.cluster.on_host`: what raydebug does on one host of a cluster that it starts by ssh.

It reads one request from stdin, a JSON object, and prints one answer. The token is in the request, and in no command
line or variable. All of a host's files are in one private folder, whose name the request gives: so a host can be
cleared whatever became of the answer. Of the other hosts it knows nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypedDict

import psutil

from raydebug import process
from raydebug.cluster import on_nodes, private_folders, rendezvous
from raydebug.cluster.local import kill_all, processes_with
from raydebug.cluster.ray_node import last_words
from raydebug.errors import RaydebugError
from raydebug.process import SAFE_PATH
from raydebug.protocol import variables
from raydebug.protocol.records import Name, Text, text_of_at_most
from raydebug.settings.files import atomic_write, open_private

POLL_S = 0.2
ENDS_S, KILLED_S = 20.0, 5.0  # the node program's own way out, and that of what it leaves
NODE = ["node", "--folder"]
LOG, LOG_BYTES = "node.log", 1 << 20  # of the node program itself


class HostAnswer(TypedDict, total=False):
    """What a host answers, as far as it is asked for it; `problem` is why it cannot."""

    problem: Text
    gone: bool
    python: Name
    executable: Name
    hook: bool
    raydebug: Name
    ray: Name
    debugpy: Name
    node: rendezvous.NodeState
    head: rendezvous.Head
    log: Annotated[str, text_of_at_most(4 * LOG_BYTES)]


def look(_request: dict[str, Any]) -> dict[str, Any]:
    """Return the versions of this host's Python; nothing is written."""
    return on_nodes.facts_of_python()


def start(request: dict[str, Any]) -> dict[str, Any]:
    """Start the node program, and answer when it is up or has ended; it outlives the connection only once it is up.

    The request has the `token`, the `options` of the program, and `head`: where it is, null for the head itself.
    """
    folder = Path(request["folder"])
    try:
        folder.mkdir(mode=0o700)  # nobody else's, and of no other start
    except FileExistsError:
        return {"problem": f"{folder} is there already: has this host two names in the file?"}
    private_folders.check_private(folder)
    rendezvous.mark(folder)
    atomic_write(folder / "token", request["token"])
    if request["head"]:
        atomic_write(folder / rendezvous.HEAD_FILE, json.dumps(request["head"]))
    argv = [sys.executable, SAFE_PATH, "-m", "raydebug", *NODE, str(folder), *request["options"]]
    environment = {**os.environ, variables.TOKEN_PATH: str(folder / "token")}  # as all of it has: see `_of`
    with open_private(folder / LOG) as log:
        program = process.start(argv, env=environment, output=log, cwd=folder, new_session=True)
    connection = select.poll()
    connection.register(sys.stdout, 0)  # its end alone: nobody waits for the answer any more
    while program.poll() is None and _node(folder).get("phase") != rendezvous.UP:
        if connection.poll(POLL_S * 1000):
            return end(request)
    return read(request)


def read(request: dict[str, Any]) -> dict[str, Any]:
    """Return what the node says of itself, and where the head is; with a `problem` where the node program has ended."""
    folder = Path(request["folder"])
    if not folder.exists():
        return {"problem": "its node is gone: the host was restarted, or its /tmp cleaned", "gone": True}
    private_folders.check_private(folder)
    node = _node(folder)
    found: dict[str, Any] = {"node": node, "head": rendezvous.find_head(folder)}
    if not any(_is_program(one, folder) for one in _of(folder)):
        found["problem"] = node.get("reason") or f"its node program has ended: {last_words(folder / LOG)}"
    return found


def read_log(request: dict[str, Any]) -> dict[str, Any]:
    """Return the last LOG_BYTES of a log, `file`."""
    return {"log": (Path(request["folder"]) / request["file"]).read_bytes()[-LOG_BYTES:].decode("utf-8", "replace")}


def end(request: dict[str, Any]) -> dict[str, Any]:
    """End the node program and all that it has started, and remove the folder."""
    folder = Path(request["folder"])
    if not os.path.lexists(folder) or folder.lstat().st_uid != os.geteuid():  # another user's is none of ours
        return {}
    head = None
    with contextlib.suppress(RaydebugError):
        head = rendezvous.find_head(folder)
    for one in _of(folder):
        with contextlib.suppress(psutil.Error):
            if _is_program(one, folder):
                one.terminate()
                one.wait(ENDS_S)
    if left := kill_all(lambda: _of(folder), time.monotonic() + KILLED_S):
        return {"problem": f"processes {', '.join(str(one.pid) for one in left)} do not end"}
    for path in (Path(head["temp_dir"]) if head else folder, folder):  # that of a node which was killed
        private_folders.remove_private(path)
    return {"problem": f"{folder} cannot be removed"} if folder.exists() else {}


ANSWERED_BY: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "look": look, "start": start, "read": read, "log": read_log, "end": end,
}  # fmt: skip


def _node(folder: Path) -> Mapping[str, Any]:
    return next(iter(rendezvous.list_nodes(folder)), {})


def _of(folder: Path) -> list[psutil.Process]:
    """Return all processes of this host's node, also of one whose program was killed."""
    return processes_with(variables.TOKEN_PATH, str(folder / "token"))


def _is_program(found: psutil.Process, folder: Path) -> bool:
    with contextlib.suppress(psutil.Error):
        return found.cmdline()[4:7] == [*NODE, str(folder)]
    return False


def main() -> None:
    """Answer the request on stdin."""
    os.umask(0o077)
    request = json.load(sys.stdin)
    try:
        answer = ANSWERED_BY[request["do"]](request)
    except (RaydebugError, OSError) as error:
        answer = {"problem": f"{error.what}: {error.cause}" if isinstance(error, RaydebugError) else str(error)}
    # What a shell printed before may have no end of line.
    sys.stdout.write(f"\n{on_nodes.MARK}{json.dumps(answer)}\n")


if __name__ == "__main__":
    main()
