"""Breakpoints in child processes of every kind: each pauses, or the log says why not; none crashes or hangs."""

from __future__ import annotations

import os
import py_compile
from pathlib import Path

import pytest

from gateway_under_test import GatewayUnderTest, open_gateway, visit
from raydebug.client.gateway_client import fetch_processes, fetch_stacks, save_pause
from raydebug.worker import import_hooks

LONG = os.environ.get("RAYDEBUG_TEST_LONG") == "1"

HEAD = """\
import concurrent.futures, multiprocessing, os, resource, subprocess, sys, threading, time

CHILD = "x = 41\\nbreakpoint()\\nprint('child went on', x, flush=True)\\n"

def work(x=41):
    breakpoint()
    say(f"child went on {x}")

def say(line):  # in one write: processes that share a pipe must not mix their lines, even with PYTHONUNBUFFERED
    print(line + "\\n", end="", flush=True)

def python(*options, **how):
    run = subprocess.run([sys.executable, *options, "-c", CHILD], stdin=subprocess.DEVNULL, **how)
    say(f"exit code {run.returncode}")

def fork(prepare=lambda: None):
    pid = os.fork()
    if pid == 0:
        prepare()
        work()
        os._exit(0)
    say(f"exit code {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")

def process(method):
    started = multiprocessing.get_context(method).Process(target=work)
    started.start()
    started.join()
    say(f"exit code {started.exitcode}")

def in_pool(context):
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(context)) as pool:
        pool.submit(work).result()
    say("exit code 0")

def close_stderr():
    sys.stderr.close()

def close_all():
    # As a daemon does; what is opened next takes the numbers of what was ours.
    os.closerange(3, 100)
    os.close(2)
    kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]
    os.fstat(kept[-1])
    global check
    check = kept

def daemon():
    os.setsid()
    os.chdir("/")
    pid = os.fork()
    if pid:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

if __name__ == "__main__":
"""
PAUSE = {
    "subprocess": "python()",
    "isolated (-I)": "python('-I')",
    "without PYTHON* (-E)": "python('-E', env={**os.environ, 'PYTHONBREAKPOINT': '0'})",
    "preexec_fn": "python(preexec_fn=os.setsid)",
    "only our names": "python(env={n: v for n, v in os.environ.items() if n.startswith('RAYDEBUG_')})",
    "-S with the package's path": "python('-S', env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)})",
    "fork": "process('fork')",
    "spawn": "process('spawn')",
    "forkserver": "process('forkserver')",
    "pool": "in_pool('fork')",
    "os.fork": "fork()",
    "exec": "fork(lambda: os.execv(sys.executable, [sys.executable, '-c', CHILD]))",
    "fork in a thread": "thread = threading.Thread(target=fork); thread.start(); thread.join()",
    "closed stderr": "fork(close_stderr)",
    "no stderr": "fork(lambda: setattr(sys, 'stderr', None))",
    "closed files": "fork(close_all)",
    "daemon": "fork(daemon)",
}
RARE = ("preexec_fn", "only our names", "-S with the package's path", "pool", "fork in a thread", "exec")
AFTER_A_PAUSE = {
    "os.fork": "work(1); fork(); work(2)",
    "pool": "work(1); in_pool('fork'); work(2)",
    "forkserver": "work(1); process('forkserver'); work(2)",
    "subprocess": "work(1); python(); work(2)",
    "closed files": "work(1); fork(close_all); work(2)",
}
WHY_NOT = {
    "without site (-S)": (
        "python('-S')",
        'RuntimeWarning: Ignoring unimportable $PYTHONBREAKPOINT: "raydebug.worker.pause.fallback_breakpoint"',
    ),
    "without our names": (
        "python(env={n: v for n, v in os.environ.items() if not n.startswith('RAYDEBUG_')})",
        "raydebug: <string>:2 not paused: RAYDEBUG_GATEWAY is not in the environment of this process",
    ),
    "no token": (
        "python(env={**os.environ, 'RAYDEBUG_TOKEN_PATH': '/nonexistent'})",
        "raydebug: <string>:2 not paused: the token file cannot be read: [Errno 2]",
    ),
    "no gateway": (
        "python(env={**os.environ, 'RAYDEBUG_GATEWAY': '127.0.0.1:1', 'RAYDEBUG_PATIENCE_S': '0'})",
        "raydebug: <string>:2 not paused: no gateway at 127.0.0.1:1: [Errno 111] Connection refused",
    ),
    "no debugpy": (
        """open(os.path.join(os.path.dirname(__file__), 'debugpy.py'), 'w').write("raise ImportError('none here')")
    python(env={**os.environ, 'PYTHONPATH': os.path.dirname(__file__)})""",
        "raydebug: <string>:2 not paused: debugpy cannot be loaded (none here)",
    ),
    "no files left": (
        "fork(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4)))",
        "program0.py:6 not paused: OSError: [Errno 24] Too many open files",
    ),
}


def let_go(gateway: GatewayUnderTest) -> bool:
    """Resume the one pause; return whether it was the program's own."""
    (pause,) = gateway.pauses()
    gateway.resume(pause["id"])
    return pause["pid"] == gateway.programs[-1].pid


@pytest.mark.parametrize("how", [pytest.param(how, marks=[pytest.mark.long] * (how in RARE)) for how in PAUSE])
def test_child_pauses(gateway, how):
    """A breakpoint in this kind of child pauses it; resumed, it runs to its end."""
    program = gateway.start(HEAD + "    " + PAUSE[how], RAYDEBUG_JOB="j")
    assert not let_go(gateway)
    assert program.communicate(timeout=60)[0] == "child went on 41\nexit code 0\n"


@pytest.mark.parametrize("how", AFTER_A_PAUSE)
def test_child_of_a_process_that_has_paused(gateway, how):
    """A child of a process that has paused before pauses too, and afterwards so does its parent."""
    program = gateway.start(HEAD + "    " + AFTER_A_PAUSE[how], RAYDEBUG_JOB="j")
    assert [let_go(gateway) for _ in range(3)] == [True, False, True]
    out = program.communicate(timeout=60)[0]
    assert out == "child went on 1\nchild went on 41\nexit code 0\nchild went on 2\n"


@pytest.mark.parametrize("how", WHY_NOT)
def test_child_that_cannot_pause_says_why(gateway, how):
    """A child that cannot reach the gateway continues, and one line of the job's log says why."""
    call, line = WHY_NOT[how]
    program = gateway.start(HEAD + "    " + call, RAYDEBUG_JOB="j")
    out, err = program.communicate(timeout=30)
    assert out == "child went on 41\nexit code 0\n", err
    assert line in err
    assert "Traceback" not in err


def test_fork_while_another_thread_is_paused(gateway):
    """A fork made while another thread is paused has a pause of its own; the parent's pause stays."""
    program = gateway.start(HEAD + "    thread = threading.Thread(target=work, args=(1,)); thread.start()\n"
                         "    time.sleep(1.5)\n    fork()\n    thread.join()\n", RAYDEBUG_JOB="j")  # fmt: skip
    first, second = gateway.pauses(2)
    assert [first["pid"] == program.pid, second["pid"] == program.pid] == [True, False]
    gateway.resume(second["id"])
    assert gateway.pauses()[0]["id"] == first["id"]
    gateway.resume(first["id"])
    said = program.communicate(timeout=60)[0].splitlines()  # the child may end after the parent's thread
    assert sorted(said) == ["child went on 1", "child went on 41", "exit code 0"]


FORK_AT_FIRST_DIAL = """
    thread = threading.Thread(target=work, args=(1,))
    thread.start()
    begin = time.monotonic()
    while "debugpy" not in sys.modules:
        assert time.monotonic() - begin < 30
    fork()  # while the other thread imports the debugger: its locks would stay taken in the child
    thread.join()
"""


def test_fork_while_another_thread_imports_the_debugger(gateway):
    """A child forked during the first pause of another thread pauses as any other."""
    program = gateway.start(HEAD + FORK_AT_FIRST_DIAL, RAYDEBUG_JOB="j")
    first, second = gateway.pauses(2)
    assert {first["pid"] == program.pid, second["pid"] == program.pid} == {True, False}
    for pause in (first, second):
        gateway.resume(pause["id"])
    out = program.communicate(timeout=60)[0]
    assert sorted(out.splitlines()) == ["child went on 1", "child went on 41", "exit code 0"]


FORKS = """
import os, sys, threading, time
sys.setswitchinterval(1e-4)
count = int(os.environ["FORKS"])
def hit(): {hit}
threads = [threading.Thread(target=hit) for _ in range(3)]
for thread in threads: thread.start()
children = set()
for _ in range(count):
    pid = os.fork()
    if pid == 0:
        hit()
        os._exit(0)
    children.add(pid)
for thread in threads: thread.join()
end = time.monotonic() + 40 + count
while children and time.monotonic() < end:
    children -= {{pid for pid in children if os.waitpid(pid, os.WNOHANG)[0]}}
    time.sleep(0.01)
print(len(children), "children hang", flush=True)
for pid in children: os.kill(pid, 9)
"""


@pytest.mark.timeout(3600 if LONG else 100)
@pytest.mark.parametrize("hit", ["breakpoint()", "raise RuntimeError(os.getpid())"])
def test_no_child_hangs_that_is_forked_while_threads_import_our_code(tmp_path, hit):
    """No child hangs that is forked while other threads reach their first breakpoint, or crash for the first time.

    RAYDEBUG_TEST_LONG=1 forks 200 times in each of 20 runs.
    """
    runs, forks = (20, 200) if LONG else (1, 6)
    with open_gateway(tmp_path, "--pause-limit-s", "0.1") as gateway:
        for _ in range(runs):
            program = gateway.start(FORKS.format(hit=hit), RAYDEBUG_JOB="j", FORKS=str(forks))
            assert program.communicate(timeout=80 + 2 * forks)[0] == "0 children hang\n"


IMPORTS = """
import sys, threading
from raydebug import worker
from raydebug.worker import control_channel
control_channel.open_channel()
def note(event, arguments):
    if event == "import" and not worker.fork_guard._is_owned():
        found.append(arguments[0])
found = []
sys.addaudithook(note)
def crash(): raise ValueError
def pause():
    breakpoint()
    return 1
for work in (crash, pause, crash, pause):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print(*found)
"""


def test_a_fork_waits_for_each_of_our_imports(gateway):
    """All that a crash, a pause and questions to a process import is imported while a fork of another thread waits."""
    program = gateway.start(IMPORTS, RAYDEBUG_JOB="j")

    async def look(pause: dict) -> None:
        session, stopped = await gateway.attach(pause["id"])
        where = {"threadId": stopped["threadId"]}
        frame = (await session.request("stackTrace", where))["stackFrames"][0]["id"]
        for scope in (await session.request("scopes", {"frameId": frame}))["scopes"]:
            await session.request("variables", {"variablesReference": scope["variablesReference"]})
        await session.request("evaluate", {"expression": "1 + 1", "frameId": frame, "context": "repl"})
        await session.request("next", where)
        await session.next_event("stopped", timeout_s=20)
        await session.request("continue", where)
        await session.close()

    for _ in range(2):
        (pause,) = gateway.pauses()
        assert fetch_processes(gateway)
        assert fetch_stacks(gateway, timeout_s=5)
        assert save_pause(gateway, pause["id"])
        visit(gateway, lambda pause=pause: look(pause))
    assert program.communicate(timeout=60)[0].split() == []


def test_a_hooked_module_without_source(tmp_path: Path) -> None:
    """A module that is hooked, and there only compiled, is loaded as without the hook."""
    (tmp_path / "source.py").touch()
    py_compile.compile(str(tmp_path / "source.py"), str(tmp_path / "m.pyc"))
    loader = import_hooks._Finder({"m": print}).find_spec("m", [str(tmp_path)]).loader
    assert type(loader).__name__ == "SourcelessFileLoader"
