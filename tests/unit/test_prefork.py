"""The pool with plain processes: a forked program behaves as a started one; otherwise it is started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from raydebug.prefork import environment, hand_over, zygote
from raydebug.prefork.server import skip_setup_worker

LIMIT_S = 30.0


class PoolUnderTest:
    """A server, and programs that request processes from it."""

    def __init__(self, folder: Path, modules: str = "heavy") -> None:
        self.folder = folder
        self.installed = folder / "site-packages"
        self.installed.mkdir()
        (self.installed / "heavy.py").write_text("import os, time\nVALUE = 1\nREAD = os.environ.get('HEAVY')\n")
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("RAY", "PYTEST"))},
            "PYTHONPATH": str(self.installed),
            "PYTHONUNBUFFERED": "1",
            "RAYDEBUG_GATEWAY": "127.0.0.1:9",
            "RAYDEBUG_PREFORK": str(folder / "s"),
            "RAYDEBUG_PREFORK_MODULES": modules,
            "RAY_DEBUG": "0",
        }
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)
        argv = [sys.executable, "-m", "raydebug.prefork.server", str(folder / "s"), str(folder / "status.json")]
        with (folder / "pool.log").open("wb") as log:
            self.keeper = subprocess.Popen(argv, env=self.env, stdout=log, stderr=log)
        self.wait_until_ready()

    @property
    def status(self) -> dict[str, Any]:
        with contextlib.suppress(OSError):
            return json.loads((self.folder / "status.json").read_text())
        return {"zygotes": [], "cold": 0}

    @property
    def log(self) -> str:
        return (self.folder / "pool.log").read_text()

    def wait_until_restarted(self) -> None:
        """Wait for the zygote that follows the first cold start: the pool may hear of that one after its end."""
        wait_for(lambda: self.status["cold"] > 0, self)
        self.wait_until_ready()

    def wait_until_ready(self, count: int = 1) -> None:
        wait_for(lambda: sum(z["state"] == "ready" for z in self.status["zygotes"]) >= count, self)

    @property
    def served(self) -> int:
        return sum(z["served"] for z in self.status["zygotes"])

    def start(self, program: str, *arguments: str, env: dict[str, str] | None = None, **more: Any) -> Any:
        script = self.folder / "program.py"
        if not script.exists() or script.read_text() != program:
            script.write_text(program)
        environ = {**self.env, "RAYDEBUG_JOB": "test", **(env or {})}
        more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": self.folder, "text": True, **more}
        return subprocess.Popen([sys.executable, str(script), *arguments], env=environ, **more)

    def run(self, program: str, *arguments: str, **more: Any) -> tuple[int, str, str]:
        process = self.start(program, *arguments, **more)
        out, err = process.communicate(timeout=LIMIT_S)
        return process.returncode, out, err

    def run_python(self, *arguments: str) -> tuple[str, str]:
        argv, environ = [sys.executable, *arguments], {**self.env, "RAYDEBUG_JOB": "test"}
        done = subprocess.run(argv, env=environ, cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_S)
        return done.stdout, done.stderr

    def end(self) -> None:
        family = [psutil.Process(self.keeper.pid), *psutil.Process(self.keeper.pid).children(recursive=True)]
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self.keeper.wait()


def wait_for(condition: Any, pool: PoolUnderTest) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, pool.log
        time.sleep(0.02)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PoolUnderTest]:
    started = PoolUnderTest(tmp_path)
    try:
        yield started
    finally:
        started.end()


IS_WARM = "import sys; print('warm' if 'raydebug.prefork.forked_process' in sys.modules else 'cold')\n"
FACTS = """
import json, os, resource, signal, sys
print(json.dumps({
    "argv": sys.argv, "orig": sys.orig_argv, "name": __name__, "file": __file__, "path": sys.path,
    "env": {k: v for k, v in os.environ.items() if k not in ("LC_CTYPE",)}, "cwd": os.getcwd(), "umask": os.umask(0),
    "files": sorted(resource.getrlimit(resource.RLIMIT_NOFILE)),
    "sigpipe": str(signal.getsignal(signal.SIGPIPE)), "sigint": repr(signal.getsignal(signal.SIGINT))[:30],
    "sigusr1": str(signal.getsignal(signal.SIGUSR1)), "sigchld": str(signal.getsignal(signal.SIGCHLD)),
    "main": sys.modules["__main__"].__dict__ is globals(), "fds": sorted(os.listdir("/proc/self/fd"), key=int)[:3],
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
}))
"""


def test_a_forked_program_sees_what_a_started_one_sees(pool: PoolUnderTest) -> None:
    """Arguments, environment, folder, umask, limits, path and signals are those of a program that Python started."""
    warm = json.loads(pool.run(FACTS, "one", "--two")[1])
    cold = json.loads(pool.run(FACTS, "one", "--two", env={"RAYDEBUG_PREFORK": "/nowhere"})[1])
    warm["env"]["RAYDEBUG_PREFORK"] = cold["env"]["RAYDEBUG_PREFORK"]
    assert warm == cold
    wait_for(lambda: pool.served == 1, pool)  # it hears of a fork while that runs


def test_a_module_run_by_m_and_a_spawned_child_are_forked(pool: PoolUnderTest) -> None:
    """`python -m` and multiprocessing's spawn go through the pool; a spawned child returns its result."""
    (pool.folder / "app.py").write_text(
        "import multiprocessing as m, sys\n"
        "def work(x): return (x * 2, 'raydebug.prefork.forked_process' in sys.modules)\n"
        "if __name__ == '__main__':\n"
        "    print(m.get_context('spawn').Pool(1).map(work, [21]), sys.argv[1:])\n"
    )
    assert pool.run_python("-m", "app", "-x") == ("[(42, True)] ['-x']\n", "")
    wait_for(lambda: pool.served == 2, pool)


def test_a_module_that_the_zygote_has_is_run_anew(pool: PoolUnderTest) -> None:
    """`python -m` runs a module as the program without a warning about a loaded module."""
    package = pool.installed / "tools"
    package.mkdir()
    (package / "__init__.py").write_text("import tools.run\n")
    (package / "run.py").write_text("if __name__ == '__main__':\n    " + IS_WARM.replace("\n", "\n    ") + "\n")
    (pool.installed / "heavy.py").write_text("import tools\n")
    assert pool.run(IS_WARM)[1] == "cold\n"
    pool.wait_until_restarted()
    assert pool.run_python("-m", "tools.run") == ("warm\n", "")


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("raise SystemExit(7)", 7),
        ("raise SystemExit('no')", 1),
        ("import os; os._exit(3)", 3),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("raise SystemExit(256 + 4)", 4),
        ("import threading, time, sys\nthreading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()", 0),
    ],
)
def test_the_end_of_a_forked_program_is_that_of_the_process(pool: PoolUnderTest, program: str, code: int) -> None:
    """Exit codes and signals reach the parent of the process that was started."""
    assert pool.run(program)[0] == code
    wait_for(lambda: pool.served == 1, pool)


def test_an_error_is_reported_without_frames_of_the_pool(pool: PoolUnderTest) -> None:
    """A traceback of a forked program is the one that Python prints for a started one."""
    warm = pool.run("def f():\n    raise ValueError('x')\nf()\n")[2]
    cold = pool.run("def f():\n    raise ValueError('x')\nf()\n", env={"RAYDEBUG_PREFORK": "/nowhere"})[2]
    assert warm == cold
    wait_for(lambda: pool.served == 1, pool)


def test_what_a_program_leaves_to_its_end_is_done(pool: PoolUnderTest) -> None:
    """Threads are joined, exit functions run, files are written, and the program's objects are released."""
    program = """
import atexit, sys, threading, time
class Held:
    def __del__(self): print("gone")
held = Held()
atexit.register(print, "exit function")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
written = open("written", "w")
written.write("all")
sys.stdout.write("main ")
"""
    warm = pool.run(program)
    assert warm == pool.run(program, env={"RAYDEBUG_PREFORK": "/nowhere"})
    assert warm == (0, "main thread\nexit function\ngone\n", "")
    assert (pool.folder / "written").read_text() == "all"
    wait_for(lambda: pool.served == 1, pool)


def test_files_that_a_process_inherits_are_there_by_their_numbers(pool: PoolUnderTest) -> None:
    """Standard input, and a pipe at number 55, are read and written by the forked program."""
    reading, writing = os.pipe()
    os.dup2(writing, 55)
    os.close(writing)
    program = "import os, sys; os.write(55, sys.stdin.read().encode()); print(os.get_inheritable(55))"
    process = pool.start(program, stdin=subprocess.PIPE, pass_fds=[55])
    os.close(55)
    assert process.communicate("through", timeout=LIMIT_S)[0] == "True\n"
    assert os.read(reading, 100) == b"through"
    assert os.read(reading, 100) == b""  # nobody holds the other end any more
    os.close(reading)
    wait_for(lambda: pool.served == 1, pool)


def test_signals_reach_the_program(pool: PoolUnderTest) -> None:
    """SIGTERM and SIGUSR1 to the proxy process are handled by the program."""
    process = pool.start(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('usr1', flush=True))\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(0.05)\n"
    )
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "usr1\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 9


SLEEPS = "import os, time; print(os.getpid(), flush=True); time.sleep(100)"


def test_a_status_that_cannot_be_written(pool: PoolUnderTest) -> None:
    """A full disk takes no status; the pool and its programs go on."""
    status = pool.folder / "status.json"
    status.unlink()
    status.mkdir()
    assert [pool.run("import sys; sys.exit(3)\n")[0] for _ in range(2)] == [3, 3]
    assert pool.keeper.poll() is None


def test_the_program_ends_with_its_proxy(pool: PoolUnderTest) -> None:
    """SIGKILL of the proxy, which cannot be forwarded, ends the program too; SIGKILL of the program ends both."""
    process = pool.start(SLEEPS)
    pid = int(process.stdout.readline())
    assert pid != process.pid
    process.kill()
    wait_for(lambda: not psutil.pid_exists(pid), pool)
    other = pool.start(SLEEPS)
    os.kill(int(other.stdout.readline()), signal.SIGKILL)
    assert other.wait(LIMIT_S) == -signal.SIGKILL


def test_a_program_outlives_its_zygote_and_the_keeper(pool: PoolUnderTest) -> None:
    """Killing the zygote harms no running program, and its exit code still arrives."""
    process = pool.start("import sys\nprint('up', flush=True)\nsys.stdin.read()\nsys.exit(5)", stdin=subprocess.PIPE)
    assert process.stdout.readline() == "up\n"
    os.kill(pool.status["zygotes"][0]["pid"], signal.SIGKILL)
    process.stdin.close()
    assert process.wait(LIMIT_S) == 5
    assert pool.run(IS_WARM)[:2] == (0, "cold\n")  # and it makes a new zygote
    pool.wait_until_restarted()
    assert pool.run(IS_WARM)[:2] == (0, "warm\n")
    last = pool.start("import sys\nprint('up', flush=True)\nsys.stdin.read()\nsys.exit(4)", stdin=subprocess.PIPE)
    assert last.stdout.readline() == "up\n"
    pool.keeper.kill()
    pool.keeper.wait()
    assert pool.run(IS_WARM)[:2] == (0, "cold\n")
    last.stdin.close()
    assert last.wait(LIMIT_S) == 4
    pool.keeper = subprocess.Popen(["sleep", "0"])  # what the fixture ends


def test_a_module_that_changed_is_never_served(pool: PoolUnderTest) -> None:
    """After an edit of an installed module the next process starts cold, with the new code; the next is warm.

    A package installed after the imports ends the zygote too: an import may have tested for it.
    """
    program = IS_WARM + "import heavy; print(heavy.VALUE)"
    assert pool.run(program)[1] == "warm\n1\n"
    (pool.installed / "heavy.py").write_text("VALUE = 22\n")
    assert pool.run(program)[1] == "cold\n22\n"
    pool.wait_until_ready()
    assert pool.run(program)[1] == "warm\n22\n"
    (pool.installed / "another.py").write_text("")
    assert pool.run(IS_WARM)[1] == "cold\n"


def test_a_job_with_a_module_of_its_own_by_the_same_name_gets_its_own(pool: PoolUnderTest) -> None:
    """A file in the script's folder hides the installed one of its name, as usual."""
    (pool.folder / "heavy.py").write_text("VALUE = 'mine'\n")
    assert pool.run(IS_WARM + "import heavy; print(heavy.VALUE)")[1] == "cold\nmine\n"


def test_the_users_own_module_is_what_it_is_now(pool: PoolUnderTest) -> None:
    """A user's module edited between two runs is current in the second, and both are warm."""
    for value in (1, 2):
        (pool.folder / "reward.py").write_text(f"VALUE = {value}  # {'x' * value}\n")
        assert pool.run(IS_WARM + "import reward; print(reward.VALUE)")[1] == f"warm\n{value}\n"


def test_another_value_of_a_variable_read_at_import_starts_cold_then_warm(pool: PoolUnderTest) -> None:
    """The module's import reads HEAVY: another value needs another zygote; a variable that no import reads is free."""
    program = IS_WARM + "import heavy, os; print(heavy.READ, os.environ.get('FREE'))"
    assert pool.run(program, env={"FREE": "1"})[1] == "warm\nNone 1\n"
    assert pool.run(program, env={"HEAVY": "x"})[1] == "cold\nx None\n"
    pool.wait_until_ready(2)
    assert pool.run(program, env={"HEAVY": "x"})[1] == "warm\nx None\n"
    assert pool.run(program)[1] == "warm\nNone None\n"


def test_no_more_zygotes_than_allowed(pool: PoolUnderTest) -> None:
    """A fourth environment replaces the least recently used one."""
    for count, value in enumerate("abc", start=2):
        pool.run("pass", env={"HEAVY": value})
        pool.wait_until_ready(min(count, 3))
    wait_for(lambda: all(z["state"] == "ready" for z in pool.status["zygotes"]), pool)
    assert [z["number"] for z in pool.status["zygotes"]] == [2, 3, 4]


def test_fifty_at_one_time(pool: PoolUnderTest) -> None:
    """Fifty starts at once each run once, with their own arguments, and all from the pool."""
    program = "import os, sys; open('ran', 'a').write(sys.argv[1] + ' '); sys.exit(int(sys.argv[1]))"
    processes = [pool.start(program, str(number)) for number in range(50)]
    assert [process.wait(LIMIT_S) for process in processes] == list(range(50))
    assert sorted((pool.folder / "ran").read_text().split(), key=int) == [str(n) for n in range(50)]
    wait_for(lambda: pool.served == 50, pool)


def test_what_is_drawn_at_random_differs(pool: PoolUnderTest) -> None:
    """Two forks draw different random numbers, and have different keys for their children."""
    program = "import random, multiprocessing as m; print(random.random(), m.current_process().authkey.hex())"
    assert len({pool.run(program)[1] for _ in range(2)}) == 2
    wait_for(lambda: pool.served == 2, pool)


def test_a_thread_at_import_makes_no_fork(pool: PoolUnderTest) -> None:
    """A package that starts a thread at import is not forked: processes start as usual, and `ps` gives the reason."""
    text = "import threading, time\nVALUE = 3\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
    (pool.installed / "heavy.py").write_text(text)
    assert pool.run(IS_WARM)[1] == "cold\n"
    wait_for(lambda: [z["state"] for z in pool.status["zygotes"]] == ["unfit"], pool)
    assert "an import started a thread" in pool.status["zygotes"][0]["reason"]
    assert pool.run(IS_WARM)[1] == "cold\n"


def test_a_start_that_cannot_be_taken_over_is_a_cold_one(pool: PoolUnderTest) -> None:
    """If a fork fails before the program runs, the original process starts it; the pool gives the reason."""
    (pool.installed / "heavy.py").write_text("import os\ndef no(*_): raise OSError('no limits')\nos.nice = no\n")
    assert pool.run(IS_WARM)[1] == "cold\n"  # for heavy has changed
    pool.wait_until_restarted()
    assert pool.run(IS_WARM + "raise SystemExit(3)") == (3, "cold\n", "")
    wait_for(lambda: pool.status["cold"] == 2, pool)
    assert pool.status["last_cold"][-1]["reason"] == "OSError: no limits"
    wait_for(lambda: [z["running"] for z in pool.status["zygotes"]] == [0], pool)  # the fork's end is told after that


def test_limits_of_process_groups_are_widened_in_forks(pool: PoolUnderTest) -> None:
    """A name that a module bound before the fork is the widened function, only for jobs that set the timeout."""
    package = pool.installed / "torch" / "distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "distributed_c10d.py").write_text("def init_process_group(timeout=None): return timeout\n")
    (package / "__init__.py").write_text("from .distributed_c10d import *\n")
    (pool.installed / "heavy.py").write_text("from torch.distributed import init_process_group as make_group\n")
    program = IS_WARM + "import heavy; print(heavy.make_group())"
    assert pool.run(program) == (0, "cold\nNone\n", "")
    pool.wait_until_ready()
    assert pool.run(program, env={"RAYDEBUG_GROUP_TIMEOUT_S": "7200"})[1] == "warm\n2:00:00\n"
    assert pool.run(program)[1] == "warm\nNone\n"


def test_without_a_pool_nothing_is_asked(pool: PoolUnderTest) -> None:
    """A program outside a job, and one whose pool is gone, start as usual without a message."""
    script = pool.folder / "program.py"
    script.write_text(IS_WARM)
    done = subprocess.run([sys.executable, str(script)], env=pool.env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("cold\n", "")
    assert pool.run(IS_WARM, env={"RAYDEBUG_PREFORK": "/nowhere"}) == (0, "cold\n", "")


def test_what_may_be_forked() -> None:
    """The pool serves Ray's workers, and a job's programs and spawned children, but no worker of another Python."""
    worker, job = "/x/ray/_private/workers/default_worker.py", {"RAYDEBUG_JOB": "1"}
    spawn = "from multiprocessing.spawn import spawn_main; spawn_main()"
    spawned = ["python", "-B", "-c", spawn, "--multiprocessing-fork"]
    another = ["python", "/x/raydebug/worker/py_executable.py", worker]
    assert hand_over.is_wanted(["python", "-u", worker, "--a=1"], {})
    assert hand_over.is_wanted(["python", "-X", "dev", "-m", "verl.trainer.main_ppo"], job)
    assert hand_over.is_wanted(spawned, job)
    for argv in (["python"], ["python", "-c", "print(1)"], another, ["python", "tool"]):
        assert not hand_over.is_wanted(argv, job)
    assert not hand_over.is_wanted(spawned, {})


def test_a_value_that_the_import_sets_is_as_good_as_the_one_it_found() -> None:
    """A child of a process with the same imports has the variables that they set."""
    facts = {"read": {"A": None, "B": "1"}, "set": {"A": "made"}, "mapped": ["/opt/x.so"]}
    assert environment.differences(facts, {"A": "made", "B": "1"}) == {}
    assert environment.differences(facts, {"A": "other", "B": "1"}) == {"A": (None, "other")}
    assert environment.differences(facts, {"B": "1", "OMP_PLACES": "cores"}) == {"OMP_PLACES": (None, "cores")}
    assert environment.differences(facts, {"B": "1", "LD_PRELOAD": "/opt/x.so"}) == {}
    assert "LD_PRELOAD" in environment.differences(facts, {"B": "1", "LD_PRELOAD": "/opt/y.so"})
    assert environment.after_import(facts, {"B": "1"}) == {"A": "made", "B": "1"}


def test_rays_setup_is_spared_where_it_only_sets_variables() -> None:
    """The work of setup_worker.py is skipped; a worker with its own command starts cold."""
    worker = "/x/ray/_private/workers/default_worker.py"
    argv = ["python", "/x/ray/_private/workers/setup_worker.py", worker, "--a=1", "--language=PYTHON"]

    def request(**context: Any) -> dict[str, Any]:
        serialized = f"--serialized-runtime-env-context={json.dumps(context)}"
        return {"argv": [*argv, serialized], "env": {"K": "0"}, "executable": "python"}

    plain = request(env_vars={"V": "1"}, py_executable="python", command_prefix=[])
    skip_setup_worker(plain)
    assert plain == {"argv": ["python", worker, "--a=1"], "env": {"K": "0", "V": "1"}, "executable": "python"}
    for other in ({"command_prefix": ["cd /x &&"]}, {"py_executable": "other"}, {"env_vars": {"V": "${PATH}:/x"}}):
        with pytest.raises(ValueError, match="set-up"):
            skip_setup_worker(request(**other))


def test_link_in_the_standard_library(tmp_path, monkeypatch):
    """A file that the distribution links from the standard library's folder is an installed file."""
    stdlib = tmp_path / "lib"
    stdlib.mkdir()
    (tmp_path / "sitecustomize.py").write_text("")
    (stdlib / "sitecustomize.py").symlink_to(tmp_path / "sitecustomize.py")
    monkeypatch.setattr(zygote, "_STDLIB", (f"{stdlib}/",))
    assert zygote.is_installed(str(stdlib / "sitecustomize.py"))
    assert not zygote.is_installed(str(tmp_path / "sitecustomize.py"))
