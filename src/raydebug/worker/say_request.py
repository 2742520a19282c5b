"""SAY_REQUEST, which pydevd learns here: the gateway has a paused thread write a line to the job's log.

Sources (debugpy 1.8.22, private names, held by tests/ray/test_contracts.py): pydevd_process_net_command_json.py looks
up `on_<command>_request` by the lower-case command; pydevd_base_schema.py `register_request`, without which a request
cannot be read; pydevd.py `post_method_as_internal_command`, which runs a function in a suspended thread.
"""

from __future__ import annotations

from typing import Any

from raydebug import worker
from raydebug.protocol import wire
from raydebug.protocol.messages import SAY_REQUEST
from raydebug.worker import suspended_threads


def register() -> None:
    """Register the request with pydevd, which is imported."""
    from _pydevd_bundle._debug_adapter import pydevd_base_schema, pydevd_schema
    from _pydevd_bundle.pydevd_process_net_command_json import PyDevJsonCommandProcessor

    def on_request(_processor: object, debugger: Any, request: Any) -> None:
        suspended, thread_id = suspended_threads.suspended_by(debugger), request.arguments["threadId"]
        to = {"seq": request.seq, "command": request.command}
        if not suspended.is_suspended(thread_id):
            suspended.send(wire.refusal(0, to, "the thread is not paused"))
            return

        def say(_debugger: object) -> None:  # not in pydevd's reader: the paused thread may hold a lock of stderr
            worker.log(f"{request.arguments['at']} {request.arguments['text']}")
            suspended.send(wire.response(0, to))

        own_id = pydevd_base_schema.BaseSchema._translate_id_from_dap(thread_id)
        debugger.post_method_as_internal_command(own_id, say)

    pydevd_base_schema.register_request(SAY_REQUEST)(pydevd_schema.Request)
    setattr(PyDevJsonCommandProcessor, f"on_{SAY_REQUEST.lower()}_request", on_request)
