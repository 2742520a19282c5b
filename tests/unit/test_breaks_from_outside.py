"""Breakpoints from outside (`--break`): what they name, where they stop, and that nothing else changes."""

from __future__ import annotations

import ast
import contextlib
import fcntl
import json
import os
import resource
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gateway_under_test import visit
from raydebug.client.breakpoint_specs import resolve_breaks
from raydebug.client.gateway_client import fetch_breaks
from raydebug.cluster.runner import LocalRunner
from raydebug.commands.trainings import read_command
from raydebug.errors import RaydebugError
from raydebug.jobs import submit
from raydebug.protocol import wire
from raydebug.worker import control_channel
from raydebug.worker.breakpoints import registry, runtime
from raydebug.worker.breakpoints.compile import NoSuchPlace, compile_with, find_statement

SOURCE = '''"""Doc."""
from __future__ import annotations

import os


def plain(x):
    """Doc."""
    y = x + 1  # line 9
    return y


class Agent:
    @staticmethod
    def run(x):
        if x:
            return 1
        return 2

    async def later(self):
        return 3


def outer():
    def inner():
        return 5
    return inner()


def documented():
    """Doc."""
'''


@pytest.mark.parametrize(
    ("line", "function", "stops_at"),
    [
        (9, None, 9),
        (8, None, 9),  # a docstring is no statement to stop at
        (7, None, 7),
        (5, None, 7),
        (1, None, 4),
        (2, None, 4),
        (14, None, 14),
        (17, None, 17),
        (None, "plain", 9),
        (None, "Agent.run", 16),
        (None, "Agent.later", 21),
        (None, "outer.inner", 26),
        (None, "documented", 31),
        (31, None, 31),
    ],
)
def test_statement_found(line, function, stops_at):
    """A line means the next statement at or after it; a function means its first statement after the docstring."""
    body, index = find_statement(ast.parse(SOURCE), line, function)
    decorators = getattr(body[index], "decorator_list", [])
    assert min([body[index].lineno, *(d.lineno for d in decorators)]) == stops_at


@pytest.mark.parametrize(
    ("line", "function", "why"),
    [
        (99, None, "no statement on line 99 or after it"),
        (None, "nothing", "it has no 'nothing'"),
        (None, "Agent.nothing", "it has no 'Agent.nothing'"),
        (None, "Agent", "'Agent' is a class; name a method of it"),
    ],
)
def test_nothing_there(line, function, why):
    """A WHERE that is not in the file is refused with a reason."""
    with pytest.raises(NoSuchPlace, match=why):
        find_statement(ast.parse(SOURCE), line, function)


def test_code_stays_the_same_elsewhere():
    """Functions without a breakpoint keep their exact bytecode and line numbers."""
    spec = [{"id": "b1", "where": "x", "function": "plain"}]
    with_break, without = {}, {}
    exec(compile_with(SOURCE.encode(), "x.py", spec), with_break)
    exec(compile(SOURCE, "x.py", "exec"), without)
    assert with_break["outer"].__code__ == without["outer"].__code__
    last_lines = [  # None is code that comes from no line of the source
        max(line for _, _, line in module["plain"].__code__.co_lines() if line is not None)
        for module in (with_break, without)
    ]
    assert last_lines[0] == last_lines[1]


@pytest.mark.parametrize("where", [{"line": 1}, {"line": 2}, {"line": 8}, {"line": 31}, {"function": "documented"}])
def test_docstrings_are_kept(where):
    """A breakpoint at a docstring leaves it a docstring, and the module's imports from `__future__` in their place."""
    names = {}
    exec(compile_with(SOURCE.encode(), "x.py", [{"id": "b1", "where": "x", **where}]), names)
    assert (names["__doc__"], names["plain"].__doc__, names["documented"].__doc__) == ("Doc.", "Doc.", "Doc.")


@pytest.mark.parametrize("condition", ["any(x == one for one in (1, 2))", "(lambda: x)()", "[one for one in [x]]"])
def test_condition_with_code_of_its_own(gateway, condition):
    """A condition may have comprehensions and lambdas: they are nested code that the module itself lacks."""
    file = gateway.folder / "rewards.py"
    file.write_text(SOURCE)
    breaks = [{"id": "b1", "where": "rewards.py:9", "file": str(file), "line": 9, "policy": {"if": condition}}]
    source = f"import sys; sys.path.insert(0, {str(gateway.folder)!r})\nimport rewards\nprint(rewards.plain(1))"
    program = gateway.start(source, RAYDEBUG_BREAKS=json.dumps(breaks))
    (pause,) = gateway.pauses()
    assert (pause["line"], pause["function"]) == (9, "plain")
    gateway.resume(pause["id"])
    assert program.communicate(timeout=60)[0] == "2\n"


@pytest.fixture
def project(tmp_path):
    (tmp_path / "rewards.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("def f(:\n")
    return tmp_path


def resolve(project, where):
    return resolve_breaks([where], runner=LocalRunner(sys.executable), working_dir=project)


def test_a_fork_on_the_jobs_path(project, tmp_path_factory):
    """A package on the PYTHONPATH that a job's script sets comes before the installed one of the same name."""
    fork = tmp_path_factory.mktemp("fork")
    (fork / "json").mkdir()
    (fork / "json" / "decoder.py").write_text("def decode(text):\n    return text\n")
    (fork / "json" / "__init__.py").write_text("")
    (project / "run.sh").write_text(f"export PYTHONPATH={fork}\npython -m verl.trainer.main_ppo a=b\n")
    search = read_command(["bash", "run.sh"], {}, project).python_path
    assert search == [str(fork)]
    runner = LocalRunner(sys.executable)
    for where in ("json/decoder.py:decode", "json.decoder:decode"):
        (found,) = resolve_breaks([where], runner=runner, working_dir=project, search=search)
        assert found["source"] == str(fork / "json" / "decoder.py")
    assert read_command(["bash", "no.sh"], {}, project).python_path == []


def test_what_resolves(project):
    """A file and a line, and a module and a function, are found in the job's folder and on its Python path."""
    (by_line,) = resolve(project, "rewards.py:9")
    assert (by_line["file"], by_line["line"]) == (str(project / "rewards.py"), 9)
    (in_file,) = resolve(project, "rewards.py:Agent.run")
    assert (in_file["file"], in_file["function"]) == (str(project / "rewards.py"), "Agent.run")
    (by_name,) = resolve(project, "rewards:Agent.run")
    assert (by_name["module"], by_name["function"]) == ("rewards", "Agent.run")
    assert resolve(project, "json.decoder:JSONDecoder.decode")[0]["module"] == "json.decoder"


@pytest.mark.parametrize(
    ("where", "cause"),
    [
        ("nothing.py:3", "there is no file nothing.py in "),
        ("rewards.py:99", "no statement on line 99 or after it"),
        ("rewards:nothing", "it has no 'nothing'"),
        ("no.such.module:f", "module no.such.module is not found in the job's Python"),
        ("math:sin", "module math has no Python source"),
        ("broken.py:1", "does not parse: invalid syntax"),
        ("what is this", "it is neither file.py:LINE nor package.module:function"),
    ],
)
def test_break_that_names_nothing(project, where, cause):
    """Each WHERE that names nothing is an error of three lines before the job starts, with exit code 2."""
    with pytest.raises(RaydebugError) as failure:
        resolve(project, where)
    assert failure.value.what == f"--break {where} names nothing"
    assert cause in failure.value.cause
    assert (failure.value.code, failure.value.exit_code) == ("break.nothing", 2)


BY_PATH = """
import importlib.util
spec = importlib.util.spec_from_file_location("custom_module", {path!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.plain(1))
"""


@pytest.mark.parametrize("how", ["import", "by path", "script"])
def test_stops_where_it_is_set(gateway, how):
    """A breakpoint from outside pauses an imported module, one loaded by its path, and the script itself."""
    file = gateway.folder / "rewards.py"
    file.write_text(SOURCE + "\nif __name__ == '__main__':\n    print(plain(1))\n")
    breaks = json.dumps([{"id": "b1", "where": "rewards.py:9", "file": str(file), "line": 9}])
    programs = {
        "import": f"import sys; sys.path.insert(0, {str(gateway.folder)!r})\nimport rewards\nprint(rewards.plain(1))",
        "by path": BY_PATH.format(path=str(file)),
        "script": file.read_text(),
    }
    if how == "script":
        breaks = breaks.replace("/rewards.py", "/program0.py")
    program = gateway.start(programs[how], RAYDEBUG_BREAKS=breaks)
    (pause,) = gateway.pauses()
    assert (pause["line"], pause["function"], pause["where"]) == (9, "plain", "rewards.py:9")

    async def go_on():
        session, stopped = await gateway.attach(pause["id"])
        frame = (await session.request("stackTrace", {"threadId": stopped["threadId"]}))["stackFrames"][0]
        assert (await session.request("evaluate", {"expression": "x", "frameId": frame["id"]}))["result"] == "1"
        await session.request("next", {"threadId": stopped["threadId"]})
        await session.next_event("stopped", timeout_s=20)
        frame = (await session.request("stackTrace", {"threadId": stopped["threadId"]}))["stackFrames"][0]
        assert frame["line"] == 10
        await session.request("continue", {"threadId": stopped["threadId"]})

    visit(gateway, go_on)
    assert program.communicate(timeout=60)[0] == "2\n"


def test_looking_for_functions_calls_nothing(monkeypatch):
    """An object of a module is not asked for its class: torch.distributed.reduce_op warns then."""
    asked = []

    class Warns:
        def __getattribute__(self, name):
            asked.append(name)
            return object.__getattribute__(self, name)

    monkeypatch.setattr(sys.modules[__name__], "deprecated", Warns(), raising=False)
    assert find_statement in list(registry._all_functions())
    assert asked == []


@pytest.mark.parametrize(
    ("error", "stopped"),
    [
        (RaydebugError("no", cause="it", fix="none", code="auth.wrong-token"), 0),
        (RaydebugError("no", cause="it", fix="none", code="cluster.no-answer"), 1),
        (KeyboardInterrupt(), 1),
    ],
)
def test_breakpoints_of_a_job_that_is_refused(gateway, monkeypatch, error, stopped):
    """Of a job that is not submitted the gateway keeps no breakpoint; one that Ray may have taken is stopped."""
    stops: list[str] = []

    class Refuses:
        def __init__(self, _cluster: object) -> None:
            assert len(fetch_breaks(gateway)) == 2

        def submit_job(self, *_: object, **__: object) -> str:
            raise error

    monkeypatch.setattr(submit, "Dashboard", Refuses)
    monkeypatch.setattr(submit, "stop_job", lambda _, job, **__: stops.append(job))
    monkeypatch.setattr(gateway, "gpus", 0, raising=False)
    breaks = resolve_breaks(
        ["json:loads", "json:dumps"], runner=LocalRunner(sys.executable), working_dir=Path(), search=()
    )
    with pytest.raises(type(error)):
        submit.submit(gateway, submit.Job(command=["x"], working_dir="/", breaks=breaks))
    assert (fetch_breaks(gateway), len(stops)) == ([], stopped)


def run(gateway, *command: str, breaks: list[dict]) -> tuple[str, str]:
    """Run a Python command with breakpoints from outside that only log; return stdout and stderr."""
    environment = {**gateway.environment, "RAYDEBUG_BREAKS": json.dumps(breaks)}
    ran = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=30)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout, ran.stderr


def log_at(file: Path, number: int, where: dict, **policy: str) -> dict:
    """Return a log point in a file."""
    real = os.path.realpath(file)
    about = {"id": f"b{number}", "where": f"{file.name}:{number}", "file": real, "source": real}
    return {**about, **where, "policy": {"log": f"point {number}", **policy}}


@pytest.mark.parametrize("options", [(), ("-P",)])
def test_script_that_is_a_symbolic_link(gateway, options):
    """A script with breakpoints that is a symbolic link has the Python path that plain Python gives it, -P included."""
    for folder in ("real", "bin"):
        (gateway.folder / folder).mkdir()
    real, link = gateway.folder / "real" / "train.py", gateway.folder / "bin" / "train.py"
    real.write_text("import sys\nprint(sys.path)\n")
    link.symlink_to("../real/train.py")
    plain = subprocess.run([sys.executable, *options, str(link)], capture_output=True, text=True, timeout=30).stdout
    out, err = run(gateway, *options, str(link), breaks=[log_at(real, 2, {"line": 2})])
    assert (out, err.count("point 2")) == (plain, 1)


GLOBAL = """\
counter = 0


def bump():
    global counter
    counter += 1
    def inner():
        nonlocal_ = 1
        global counter
        counter += nonlocal_
    inner()


bump()
print(counter)
"""


def test_one_bad_condition_drops_no_other_breakpoint(gateway):
    """A condition on a global of its function holds; one before the `global` is refused with its reason, by itself."""
    file = gateway.folder / "count.py"
    file.write_text(GLOBAL)
    good = log_at(file, 1, {"function": "bump"}, **{"if": "counter == 0"})
    bad = log_at(file, 8, {"line": 8}, **{"if": "counter > 0"})
    out, err = run(gateway, str(file), breaks=[good, bad, log_at(file, 15, {"line": 15})])
    assert out == "2\n"
    said = "breakpoint count.py:8 is not set: name 'counter' is used prior to global declaration (count.py, line 9)"
    assert [said in err, err.count("point 1\n"), err.count("point 15")] == [True, 1, 1]


CLOSURE = (
    "it uses limit of the enclosing function, which outer.<locals>.inner does not use itself; it stops only where this "
    "function is made from now on"
)


class Unreadable(Exception):
    def __str__(self) -> str:
        raise ValueError


def test_an_error_without_a_text(capsys):
    """A condition that raises an error whose text cannot be read harms nothing, and is logged."""
    runtime.Site({"id": "b1", "where": "a.py:1", "policy": {}}).failed(Unreadable())
    assert "Unreadable: (its text cannot be read)" in capsys.readouterr().err
    assert control_channel._cause_of(Unreadable()) == "Unreadable: (its text cannot be read)"


@pytest.fixture
def channel(monkeypatch):
    """A control channel whose other end is the test's, on a descriptor that select() does not take."""
    near, far = socket.socketpair()
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit, min(4096, most)), most))
    made = object.__new__(control_channel._ControlChannel)
    made.socket = socket.socket(fileno=fcntl.fcntl(near, fcntl.F_DUPFD_CLOEXEC, 2000))
    made.sending, made._messages, made._decoder = threading.Lock(), [], wire.Decoder()
    near.close()
    monkeypatch.setattr(control_channel, "_channel", made)
    far.settimeout(10)
    yield made, far
    for end in (made.socket, far):
        end.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    control_channel._unreported.clear()


def test_a_file_that_is_loaded_waits_for_no_gateway(channel):
    """An import of a file with breakpoints reports them, waits for no gateway, and a report that waits comes later."""
    made, far = channel
    control_channel.report_set(["b1"])
    with made.sending:
        control_channel.report_set(["b2"])
    (first,) = wire.Decoder().feed(far.recv(65536))
    assert (first["event"], first["body"]["id"]) == ("break", "b1")
    assert control_channel._unreported == {"b2"}
    far.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionResetError):
        made.take_message()
    (second,) = wire.Decoder().feed(far.recv(65536))
    assert second["body"]["id"] == "b2"
    with contextlib.suppress(BlockingIOError):
        while True:
            made.socket.send(b" " * 65536, socket.MSG_DONTWAIT)
    control_channel.report_set(["b3"])
    with pytest.raises(BrokenPipeError):
        made.socket.send(b" ")  # so the thread of the channel connects again, and lists what is set


IN_LOADED = """\
import sys
from raydebug.worker.breakpoints import registry

def outer():
    limit = 3
    def inner(n):
        return n + 1
    return inner, limit

inner, _ = outer()
for number, condition in ((7, "limit > 2"), (7, "n > 2"), (5, "True"), (5, "(")):
    spec = {"id": f"b{number}{condition}", "where": "x", "file": __file__, "source": __file__, "line": number,
            "policy": {"if": condition, "log": "stops"}}
    registry.add(spec)
    (report,) = registry.build_in([spec])
    registry.remove(spec["id"])
    print(report["state"], report["message"])
"""


def test_state_of_a_breakpoint_in_loaded_code(gateway):
    """A condition that a loaded function cannot evaluate is named as the reason; another one of the file is set.

    A script that runs is no reason for a note.
    """
    file = gateway.folder / "loaded.py"
    file.write_text(IN_LOADED)
    out = run(gateway, str(file), breaks=[])[0].splitlines()
    assert out[:3] == [f"failed {CLOSURE}", "set ", "set "]
    assert out[3].startswith("failed '(' was never closed")


@pytest.mark.parametrize("launcher", ["import cProfile", "import runpy"])
def test_launcher_that_compiles_the_file_itself(gateway, launcher):
    """A file that a launcher compiles itself has no breakpoints from outside; one line at the end says so."""
    file = gateway.folder / "step.py"
    file.write_text("def step():\n    return 1\nprint(step())\n")
    spec, elsewhere = log_at(file, 2, {"line": 2}), log_at(gateway.folder / "other.py", 1, {"line": 1})
    command = ["-m", "cProfile", str(file)]
    if launcher == "import runpy":  # which restores sys.argv; the program keeps its functions
        command = ["-c", f"import runpy; kept = runpy.run_path({str(file)!r})"]
    err = run(gateway, *command, breaks=[spec, elsewhere])[1]
    assert err == (
        "raydebug: breakpoint step.py:2 was never set: the program compiled the file itself, as `python -m cProfile` "
        "does; write breakpoint() into it\n"
    )
