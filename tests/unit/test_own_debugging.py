"""Programs that debug themselves (debugpy, excepthook, tracer, atexit): pauses work, or one line says why not."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from gateway_under_test import GatewayUnderTest
from raydebug.client.gateway_client import fetch_snapshots
from raydebug.dap import DapSession

OWN_DEBUGGER = (
    "not paused: the program has connected a debugger of its own (debugpy.listen or debugpy.connect), and a process "
    "has room for one; breakpoint() stops in that one once its client is attached\n"
)
NO_THREADS_AT_EXIT = sys.version_info[:2] == (3, 12)
NOT_AT_EXIT = "not paused: the program has ended, and Python starts no thread any more\n"


async def go_on(gateway: GatewayUnderTest) -> dict[str, Any]:
    """Resume the one pause, and return it."""
    (pause,) = gateway.pauses()
    session, stopped = await gateway.attach(pause["id"])
    await session.request("continue", {"threadId": stopped["threadId"]})
    await session.close()
    return pause


def said(program: subprocess.Popen[str]) -> tuple[str, str]:
    return program.communicate(timeout=60)


@pytest.mark.parametrize("module", ["debugpy", "debugpy.server.api", "pydevd"])
async def test_program_that_imports_debugpy(gateway, module):
    """A program that only imports debugpy, or what is in it, pauses at its breakpoints."""
    program = gateway.start(f"import debugpy\nimport debugpy.server.api, {module}\nbreakpoint()\nprint('went on')\n")
    assert (await go_on(gateway))["line"] == 3
    assert said(program)[0] == "went on\n"


IMPORTS_WHILE_A_THREAD_PAUSES = """\
import sys, threading, time

def work():
    breakpoint()

def stand(event, arguments):  # in the middle of the import below until the other thread waits for it
    if event == "import" and arguments[0] == "debugpy._vendored.force_pydevd" and thread.ident is None:
        thread.start()
        while "import_pydevd" not in stack():
            time.sleep(0.01)

def stack():
    frame, names = sys._current_frames().get(thread.ident), []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names

thread = threading.Thread(target=work)
sys.addaudithook(stand)
import debugpy.server.api
thread.join()
print("went on")
"""


STDIN_DEBUGGERS = """\
import code, io, pdb, sys
class Ipdb(pdb.Pdb):  # as IPython's and torch's
    def set_trace(self, frame=None): super().set_trace(frame or sys._getframe().f_back)
pdb.set_trace(); pdb.Pdb().set_trace()
Ipdb().set_trace()
code.interact(local=locals())
own = io.StringIO(); pdb.Pdb(stdin=io.StringIO("p __name__\\nc\\n"), stdout=own).set_trace()
sys.stdin = io.StringIO("c\\n")
pdb.set_trace()
print("went on", "'__main__'" in own.getvalue())
"""


async def test_debuggers_that_read_an_empty_stdin(gateway):
    """pdb, its subclasses and consoles pause; a pdb that has commands to read reads them."""
    program = gateway.start(STDIN_DEBUGGERS)
    assert [(await go_on(gateway))["line"] for _ in range(4)] == [4, 4, 5, 6]
    out, err = said(program)
    assert (out.endswith("went on True\n"), "Traceback" in err) == (True, False), out + err


POST_MORTEM = """\
import pdb, sys
try:
    1 / 0
except ZeroDivisionError:
    pdb.post_mortem()
from IPython import embed
def look(x):
    embed(header="look")
look(7)
print("went on")
"""


async def test_post_mortem_and_embed_with_an_empty_stdin(gateway):
    """`pdb.post_mortem` pauses at the line that raised, `IPython.embed` at its own."""
    terminal = gateway.folder / "IPython" / "terminal"
    terminal.mkdir(parents=True)
    (terminal / "__init__.py").touch()
    (terminal.parent / "__init__.py").write_text("from .terminal.embed import embed\n")
    (terminal / "embed.py").write_text("def embed(*, header='', **options): raise EOFError\n")
    program = gateway.start(POST_MORTEM)
    pauses = [await go_on(gateway) for _ in range(2)]
    assert [(pause["kind"], pause["line"]) for pause in pauses] == [("post-mortem", 3), ("breakpoint", 8)]
    assert said(program)[0] == "went on\n"


JOINS_ALL = """\
import os, sys, threading
from raydebug.worker import control_channel, frames
control_channel.open_channel()
control_channel._channel.introduce()
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
print(len(frames.own_threads), threading.active_count(), [one["name"] for one in stacks.collect()["threads"]])
short = frames.start_thread(lambda: None, "short")
short.join()
print(short.is_alive(), len(frames.own_threads))
""".replace("import control_channel, frames", "import control_channel, frames, stacks")


def test_program_that_joins_all_of_its_threads(gateway):
    """A thread of ours is not among those that threading.enumerate() lists, and a look at stacks leaves it out."""
    program = gateway.start(JOINS_ALL, RAYDEBUG_JOB="j")
    assert said(program) == ("1 1 ['MainThread']\nFalse 1\n", "")


async def test_program_that_imports_debugpy_while_a_thread_pauses(gateway):
    """An import of debugpy that has begun when another thread comes to its first breakpoint ends, and both go on."""
    program = gateway.start(IMPORTS_WHILE_A_THREAD_PAUSES)
    assert (await go_on(gateway))["line"] == 4
    assert said(program)[0] == "went on\n"


LISTENS = "import debugpy\nprint(debugpy.listen(('127.0.0.1', 0))[1], flush=True)\n"


@pytest.mark.parametrize(
    ("body", "variables"),
    [("breakpoint()\nbreakpoint()\n", {}), ("raise ValueError\n", {"RAY_DEBUG_POST_MORTEM": "1"})],
)
def test_program_that_listens_for_its_own_debugger(gateway, body, variables):
    """A program that has called debugpy.listen() goes on at once without a pause, and one line says why."""
    out, err = said(gateway.start(LISTENS + body, **variables))
    assert (out.count("\n"), err.count(OWN_DEBUGGER)) == (1, 1)


@pytest.mark.parametrize("mode", ["1", "0"])
async def test_client_of_the_programs_own_debugger(gateway, mode):
    """With a client at the program's own debugpy, breakpoint() stops there, also where our debugger is off."""
    body = "debugpy.wait_for_client()\nbreakpoint()\nprint('went on')\n"
    program = gateway.start(LISTENS + body, RAY_DEBUG=mode)
    port = int(program.stdout.readline())
    session = await DapSession.connect("127.0.0.1", port)
    await session.request("initialize", {"clientName": "a test", "adapterID": "test"})
    attach = asyncio.ensure_future(session.request("attach", {"justMyCode": False}))
    await session.next_event("initialized", timeout_s=20)
    await session.request("configurationDone")
    await attach
    stopped = (await session.next_event("stopped", timeout_s=20))["body"]
    frames = (await session.request("stackTrace", {"threadId": stopped["threadId"]}))["stackFrames"]
    await session.request("continue", {"threadId": stopped["threadId"]})
    await session.close()
    assert frames[0]["line"] in (4, 5)
    assert said(program)[0] == "went on\n"


@pytest.mark.parametrize("mode", ["1", "0"])
def test_program_below_another_pydevd(gateway, mode):
    """A program that PyCharm's pydevd debugs goes on after breakpoint(): no error, and debugpy is not loaded."""
    head = "import sys, types\nother = sys.modules['pydevd'] = types.ModuleType('pydevd')\nbreakpoint()\n"
    body = "other.get_global_debugger = lambda: other\nbreakpoint()\nprint('debugpy.server' in sys.modules)\n"
    program = gateway.start(head * (mode == "0") + head.replace("breakpoint()\n", "") + body, RAY_DEBUG=mode)
    out, err = said(program)
    assert (out, err.count(OWN_DEBUGGER), "Traceback" in err) == ("False\n", int(mode == "1"), False)


OWN_HOOK = "import sys\nsys.excepthook = lambda kind, error, trace: print('own report', flush=True)\n1 / 0\n"


@pytest.mark.parametrize("calls_ours", [False, True])
async def test_program_with_an_excepthook_of_its_own(gateway, calls_ours):
    """An error that ends a program with its own excepthook pauses once; on Python 3.12 a line says why not."""
    body = OWN_HOOK.replace("print(", "previous(kind, error, trace) or print(") if calls_ours else OWN_HOOK
    head = "import sys; previous = sys.excepthook\n"
    program = gateway.start(head + body, RAYDEBUG_JOB="j", RAY_DEBUG_POST_MORTEM="1")
    if NO_THREADS_AT_EXIT and not calls_ours:
        assert said(program)[1].count(NOT_AT_EXIT) == 1
        return
    pause = await go_on(gateway)
    assert (pause["kind"], pause["line"]) == ("post-mortem", 4)
    assert said(program)[0] == "own report\n"
    assert len(fetch_snapshots(gateway, "j")) == 1


GROUP = """
import asyncio
async def boom(number):
    raise ValueError(number)
async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(boom(1))
        group.create_task(boom(2))
asyncio.run(main())
"""


async def test_exception_group(gateway):
    """A group of exceptions that ends a program pauses where its first exception was raised, and the log says so."""
    program = gateway.start(GROUP, RAY_DEBUG_POST_MORTEM="1")
    pause = await go_on(gateway)
    assert (pause["function"], pause["line"], pause["exception"]) == ("boom", 4, "ValueError: 1")
    assert "an exception group has ended it, of which the first exception is shown" in said(program)[1]


AT_EXIT = """
import atexit, threading
atexit.register(lambda: (breakpoint(), print("went on", flush=True)))
{first}
"""


@pytest.mark.parametrize("first", ["breakpoint()", ""])
async def test_breakpoint_at_exit(gateway, first):
    """A breakpoint in a function of atexit pauses, also after an earlier pause; on Python 3.12 a line says why not."""
    program = gateway.start(AT_EXIT.format(first=first))
    if first:
        assert (await go_on(gateway))["line"] == 4
    if not NO_THREADS_AT_EXIT:
        assert (await go_on(gateway))["line"] == 3
    out, err = said(program)
    assert (out, err.count(NOT_AT_EXIT)) == ("went on\n", NO_THREADS_AT_EXIT)


ENDING = """
import threading, time
breakpoint()
import pydevd
forget = pydevd.set_global_debugger
def slowly(debugger):
    if debugger is None:
        time.sleep(1)
    forget(debugger)
pydevd.set_global_debugger = slowly
debugger = pydevd.get_global_debugger()
threading.Thread(target=debugger.dispose_and_kill_all_pydevd_threads).start()
while not debugger.pydb_disposed:
    time.sleep(0.01)
breakpoint()
print("went on")
"""


async def test_breakpoint_while_pydevd_ends(gateway):
    """A breakpoint pauses while pydevd still ends its last session, as it does at the end of a program."""
    program = gateway.start(ENDING)
    assert [(await go_on(gateway))["line"] for _ in range(2)] == [3, 15]
    assert said(program)[0] == "went on\n"


TRACED = """
import sys
lines = []
def tracer(frame, event, argument):
    if frame.f_code is work.__code__ and event == "line":
        lines.append(frame.f_lineno - frame.f_code.co_firstlineno)
    return tracer if frame.f_code is work.__code__ else None
def work():
    x = 1
    return x
sys.settrace(tracer)
breakpoint()
work()
print(sys.gettrace() is tracer, *lines)
"""


async def test_program_with_a_tracer_of_its_own(gateway):
    """A tracer of the program's own (coverage, a profiler) traces on after a pause."""
    program = gateway.start(TRACED)
    await go_on(gateway)
    assert said(program)[0] == "True 1 2\n"


SWITCHED_OFF = """
import os, subprocess, sys
os.environ.pop("UNSET", None)
breakpoint()
if "again" not in sys.argv:
    os.environ["PYTHONBREAKPOINT"] = "ray.util.rpdb.set_trace"  # as Ray does when it connects
    breakpoint()
    print("went on", flush=True)
"""


def test_breakpoints_switched_off_as_in_plain_python(gateway):
    """With PYTHONBREAKPOINT=0 breakpoint() does nothing, also after Ray has replaced the variable."""
    out, err = said(gateway.start(SWITCHED_OFF, PYTHONBREAKPOINT="0"))
    assert (out, err) == ("went on\n", "")
