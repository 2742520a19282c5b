"""`python -m raydebug.check.probes REQUEST`: one request in JSON, one line of JSON as the answer.

The work is done in a child process, which may import anything and run the user's own code. This process imports
nothing heavy: it separates the child's output from the answer, and ends the child with all that it started when its
time is over.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import select
import signal
import sys
import time
from typing import Any

from raydebug.check import probes
from raydebug.check.probes import BUSY_TIMES, MARK, Facts
from raydebug.errors import RaydebugError
from raydebug.findings import describe_exception

OUTPUT_BYTES_MAX = 64 * 1024
CHUNK = 65536
STACK_LIMIT_S, STACK_ENDS_S = 2.0, 0.2  # until a process begins to write its stack, and until the next piece of it
# Folders whose functions are not the user's.
NOT_OWN = re.compile(rf"<|{re.escape(os.path.dirname(os.__file__))}/|.*/(site-packages|dist-packages|raydebug)/")  # noqa: PTH120
AS_THE_JOB = ("data", "model", "engine")  # import what the training imports: a fork of verl in its folder, a reward


def main() -> None:
    """Answer one request and print the answer."""
    request = json.loads(sys.argv[1])
    answer = run_apart(request, limit_s=float(request["limit_s"]))
    sys.stdout.write(f"\n{MARK}{json.dumps(answer, default=str)}\n")
    sys.stdout.flush()


def run_apart(request: Facts, *, limit_s: float) -> Facts:
    """Answer a request in a child process.

    Args:
        request: `question` names the module, the rest is its own.
        limit_s: after so many seconds the child and all that it started are killed. Seconds in which it could have
            run and had to wait for a processor do not count, up to `BUSY_TIMES` the limit: a busy machine is no fault.

    Returns:
        `facts`, what the module found; or one of `failed` (an exception: type, message, where, traceback), `signal`
        (the child died of it) and `late` (it was killed: where it was, as far as it is known). And `output`, what was
        printed meanwhile.
    """
    answer_end, child_answer = os.pipe()
    output_end, child_output = os.pipe()
    child = os.fork()
    if child == 0:
        _be_the_child(request, child_answer, child_output)
    os.close(child_answer)
    os.close(child_output)
    try:
        said, output, late = _listen(child, answer_end, output_end, limit_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    answer: Facts = {"output": output}
    *progress, last = said.decode(errors="replace").splitlines() or [""]
    if late:
        return {**answer, "late": _place([*progress, last])}
    if last.startswith("{"):
        return {**answer, **json.loads(last)}
    return {**answer, "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)}


def _be_the_child(request: Facts, answer_end: int, output_end: int) -> None:
    os.setsid()
    os.dup2(output_end, 1)
    os.dup2(output_end, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    faulthandler.register(signal.SIGUSR1, answer_end, all_threads=False)
    probes.answer_end = answer_end
    if request["question"] in AS_THE_JOB:
        # The folder of the training, behind the standard library: a types.py there is not for us.
        installed = (at for at, path in enumerate(sys.path) if path.endswith(("site-packages", "dist-packages")))
        sys.path.insert(next(installed, len(sys.path)), os.getcwd())  # noqa: PTH109 - pathlib is not imported here
    try:
        said: Facts = {"facts": _gather(request)}
    except RaydebugError as refusal:  # a mistake in the command, such as a misspelt key with a profile
        said = {"refused": refusal.as_json()["error"]}
    except BaseException as failure:  # noqa: BLE001 - the user's own code may raise anything, SystemExit too
        said = {"failed": describe_exception(failure)}
    sys.stdout.flush()
    sys.stderr.flush()
    with os.fdopen(answer_end, "w", encoding="utf-8") as file:
        json.dump(said, file, default=str)
    os._exit(0)  # neither exit handlers nor threads of others keep us


def _gather(request: Facts) -> Any:
    """Return the facts of one module, or the refusal of the trainer's library where it cannot compose the command."""
    from importlib import import_module

    from raydebug.trainers.config import CannotCompose

    try:
        # The names are ours (check/*.py); nothing of a user's becomes one.
        return import_module(f"raydebug.check.probes.{request['question']}").gather(request)
    except CannotCompose as refusal:
        return refusal.as_facts()


def _listen(child: int, answer_end: int, output_end: int, limit_s: float) -> tuple[bytes, str, bool]:
    """Read both pipes until the answer is whole, the child is gone, or the time is over."""
    said, output = bytearray(), bytearray()
    started = time.monotonic()
    deadline = started + limit_s
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            deadline = started + limit_s + min(_waited_s(child), limit_s * (BUSY_TIMES - 1))
            if deadline <= time.monotonic():
                return bytes(said) + _stack_of(child, answer_end), _shortened(output), True
            continue
        ready, _, _ = select.select([answer_end, output_end], [], [], left_s)
        if output_end in ready:
            output += os.read(output_end, CHUNK)
            if len(output) > 4 * OUTPUT_BYTES_MAX:  # the first cause is at the beginning, the last words are at the end
                del output[OUTPUT_BYTES_MAX : -2 * OUTPUT_BYTES_MAX]
        if answer_end in ready:
            piece = os.read(answer_end, CHUNK)
            said += piece
            if not piece:  # a grandchild may hold the other pipe for ever
                return bytes(said), _shortened(output + _rest(output_end)), False


def _stack_of(child: int, answer_end: int) -> bytes:
    """Return the stack of a child as faulthandler writes it, the last call first; empty if it does not."""
    os.kill(child, signal.SIGUSR1)
    stack = bytearray()
    while select.select([answer_end], [], [], STACK_ENDS_S if stack else STACK_LIMIT_S)[0]:
        piece = os.read(answer_end, CHUNK)
        if not piece:
            break
        stack += piece
    return bytes(stack)


def _place(lines: list[str]) -> str:
    """Return where a child was, of its stack, and what it was doing there, of what it said before; empty if unknown."""
    calls = [found for line in lines if (found := re.match(r'  File "(.+)", line (\d+) in (.+)', line))]
    if not calls:
        return ""
    call = next((call for call in calls if not NOT_OWN.match(call[1])), calls[0])
    place = f"{call[3]} at {call[1].removeprefix(os.getcwd() + os.sep)}:{call[2]}"  # noqa: PTH109 - a prefix of text
    said = [found for line in lines if (found := re.fullmatch(r"([\d.]+) (.*)", line))]
    if said and said[-1][2]:
        place += f", {said[-1][2]}, for {time.monotonic() - float(said[-1][1]):.0f} s"
    return place


def _waited_s(pid: int) -> float:
    """Return how long a process waited for a processor while it could run (proc(5): schedstat, second field)."""
    try:
        with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:  # noqa: PTH123 - pathlib is not imported here
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _rest(pipe: int) -> bytes:
    os.set_blocking(pipe, False)
    with contextlib.suppress(BlockingIOError):
        return os.read(pipe, CHUNK)
    return b""


def _shortened(output: bytes | bytearray) -> str:
    text = bytes(output).decode(errors="replace")
    if len(text) <= OUTPUT_BYTES_MAX:
        return text
    return text[: OUTPUT_BYTES_MAX // 2] + "\n...\n" + text[-OUTPUT_BYTES_MAX // 2 :]


if __name__ == "__main__":
    main()
