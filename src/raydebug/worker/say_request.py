"""SAY_REQUEST, which pydevd learns here: the gateway has a paused thread write a line to the job's log.

Sources (debugpy 1.8.22, private names, held by tests/ray/test_contracts.py): pydevd_process_net_command_json.py looks
up `on_<command>_request` by the lower-case command; pydevd_base_schema.py `register_request`, without which a request
cannot be read; pydevd.py `post_method_as_internal_command`, which runs a function in a suspended thread.
"""

from __future__ import annotations

from typing import Any

from raydebug import worker
from raydebug.protocol.messages import SAY_REQUEST
from raydebug.protocol.records import JobLine
from raydebug.worker import suspended_threads


def register() -> None:
    """Register the request with pydevd, which is imported."""
    from _pydevd_bundle._debug_adapter import pydevd_base_schema, pydevd_schema
    from _pydevd_bundle.pydevd_process_net_command_json import PyDevJsonCommandProcessor

    pydevd_base_schema.register_request(SAY_REQUEST)(pydevd_schema.Request)
    setattr(PyDevJsonCommandProcessor, f"on_{SAY_REQUEST.lower()}_request", _on_request)


def _on_request(_processor: object, debugger: Any, request: Any) -> Any:
    """Let the thread write the line; called by pydevd's reader, which could wait for a lock of the paused thread."""
    from _pydevd_bundle._debug_adapter.pydevd_base_schema import BaseSchema

    line: JobLine = request.arguments
    if not suspended_threads.suspended_by(debugger).is_suspended(line["threadId"]):
        return _answer(request, "the thread is not paused")
    thread_id = BaseSchema._translate_id_from_dap(line["threadId"])
    debugger.post_method_as_internal_command(thread_id, _say, request)
    return None


def _say(debugger: Any, request: Any) -> None:
    worker.log(f"{request.arguments['at']} {request.arguments['text']}")
    debugger.writer.add_command(_answer(request))


def _answer(request: Any, failure: str | None = None) -> Any:
    from _pydevd_bundle._debug_adapter.pydevd_schema import Response
    from _pydevd_bundle.pydevd_comm_constants import CMD_RETURN
    from _pydevd_bundle.pydevd_net_command import NetCommand

    response = Response(request.seq, failure is None, request.command, message=failure, body={})
    return NetCommand(CMD_RETURN, 0, response, is_json=True)
