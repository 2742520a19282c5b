"""The text of a file that is only in the cluster, for an editor that cannot open it."""

from __future__ import annotations

from raydebug.dap.session import RequestFailed
from raydebug.dap.wire import Message
from raydebug.gateway.pauses import Pause


async def read_source(pause: Pause, path: str) -> Message:
    """Return the body of the answer to `source`.

    pydevd gives out a file only by a reference of its own, so the paused frame is asked to read it.

    Raises:
        RequestFailed: the file cannot be read there.
        ConnectionLost: the process ended.
        TimeoutError: its thread runs, or is busy.
    """
    session = pause.process.session
    stack = await session.request("stackTrace", {"threadId": pause.thread_id, "levels": 1})
    text = await session.request(
        "evaluate",
        {
            "expression": f"''.join(__import__('linecache').getlines({path!r}))",
            "frameId": stack["stackFrames"][0]["id"],
            "context": "clipboard",  # the only one whose values pydevd does not cut
            "format": {"rawString": True},
        },
    )
    content = str(text.get("result", ""))
    if not content:
        raise RequestFailed("source", f"{path} cannot be read in the cluster", {})
    return {"content": content, "mimeType": "text/x-python"}
