"""Ray in the world of world.py, started as users start it, and a user of it at the login node."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runs import JOBS, RAYDEBUG, wait_for
from world import ADDRESSES, LOGIN, NODES, World

HEAD, *WORKERS = NODES
URL = f"http://{HEAD}:8265"
GCS = f"{ADDRESSES[HEAD]}:6379"
SMALL = ("--num-cpus=2", "--num-gpus=0", "--object-store-memory=100000000", "--disable-usage-stats")
STARTS, RAY_STARTS_S = 3, 240.0  # on two cores that do other things
TOKEN_NAME = "ray_token"
_IS_UP = "import urllib.request, sys; urllib.request.urlopen(sys.argv[1], timeout=2)"


def ray_start(machine: str) -> list[str]:
    """Return the command that runs Ray on a node in the foreground: on n1 its head."""
    role = ["--head", "--port=6379", "--dashboard-host=0.0.0.0"] if machine == HEAD else [f"--address={GCS}"]
    return ["ray", "start", "--block", *role, f"--node-ip-address={ADDRESSES[machine]}", *SMALL]


def ray_environ(world: World, *, token: str) -> dict[str, str]:
    """Return the variables of Ray, and of who may use it; the token's file is in root's home."""
    if not token:
        return {"RAY_AUTH_MODE": "disabled"}
    file = world.home() / TOKEN_NAME
    file.touch(mode=0o600)
    file.write_text(token)
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(file)}


def is_up(world: World, machine: str) -> bool:
    """Return whether a node's agent answers: it starts jobs."""
    page = f"http://{ADDRESSES[machine]}:52365/api/local_raylet_healthz"
    return world.on(machine, ["python", "-c", _IS_UP, page], check=False).returncode == 0


def start_ray(world: World, machines: Sequence[str], environ: dict[str, str]) -> None:
    """Start Ray on nodes, and wait until they are up: again where it has given up, as it does on a busy machine."""
    started: dict[str, subprocess.Popen[str]] = {}
    left = dict.fromkeys(machines, STARTS)

    def are_up() -> bool:
        for machine in machines:
            if machine not in started or started[machine].poll() is not None:
                assert left[machine], (world.folder / "log" / f"ray-{machine}").read_text()
                left[machine] -= 1
                with (world.folder / "log" / f"ray-{machine}").open("a") as log:
                    started[machine] = world.start(machine, ray_start(machine), env=environ, stdout=log, stderr=log)
        return all(is_up(world, machine) for machine in machines)

    wait_for(are_up, f"Ray on {machines}", RAY_STARTS_S)


@contextlib.contextmanager
def ray_by_hand(world: World, *, with_token: bool) -> Iterator[User]:
    """Start Ray on three nodes, and give a user of it; nothing of it is left after the block."""
    token = secrets.token_hex(32) if with_token else ""
    environ = ray_environ(world, token=token)
    try:
        start_ray(world, [HEAD], environ)
        start_ray(world, WORKERS, environ)
        yield User(world, environ=environ, token=token)
    finally:
        world.clean()


@dataclass
class User:
    """A user of a cluster, at a machine.

    Args:
        world: where he is.
        name: of the user: root or bob.
        machine: the login node, unless said otherwise.
        environ: variables of his.
        token: Ray's own; empty for a cluster without.
        cluster: under which name he has it.
    """

    world: World
    name: str = "root"
    machine: str = LOGIN
    environ: dict[str, str] = field(default_factory=dict)
    token: str = ""
    cluster: str = "default"

    def raydebug(
        self, *arguments: str, code: int | None = 0, timeout_s: float = 90.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a verb to its end, and check its exit code; None for any."""
        done = self.world.on(
            self.machine, [str(RAYDEBUG), *arguments], user=self.name, cwd=JOBS, env=self.environ, check=False,
            timeout_s=timeout_s,
        )  # fmt: skip
        assert code in (None, done.returncode), f"raydebug {arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def ask(self, verb: str, *arguments: str, code: int | None = 0) -> str:
        """Run a verb on the cluster, and return what it printed."""
        return self.raydebug(*verb.split(), "--name", self.cluster, *arguments, code=code).stdout

    def join(self, through: str, *, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run `raydebug up --join`."""
        way = ("--through", through) if through else ()
        return self.raydebug("up", "--join", URL, "--name", self.cluster, *way, code=code)

    @contextlib.contextmanager
    def joined(self, through: str) -> Iterator[dict[str, Any]]:
        """Join, give what the record says of the cluster, and leave in any case."""
        self.join(through)
        try:
            yield self.record()["remote"]
        finally:
            self.ask("down")

    def record(self) -> dict[str, Any]:
        """Return what raydebug has noted of the cluster."""
        file = self.world.home(self.name) / ".local/state/raydebug/clusters" / self.cluster / "cluster.json"
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    def pauses(self, count: int, timeout_s: float = 60.0) -> list[dict[str, Any]]:
        """Wait until this many pauses wait for a debugger, and return them."""
        found: list[dict[str, Any]] = []

        def enough() -> bool:
            nonlocal found
            listed = json.loads(self.ask("paused", "--json"))["pauses"]
            found = [one for one in listed if one["state"] == "waiting"]
            return len(found) == count

        wait_for(enough, f"{count} pauses", timeout_s)
        return found

    def attach(self, pause_id: str, *commands: str) -> str:
        """Run debugger commands at a pause, and return what they printed."""
        return self.ask("attach", str(pause_id), *(word for one in commands for word in ("-x", one)))

    @contextlib.contextmanager
    def running(self, *arguments: str) -> Iterator[Job]:
        """Run `raydebug run`; a job that still runs after the block is stopped."""
        log = self.world.home(self.name) / f"run-{secrets.token_hex(4)}.log"
        with log.open("w") as output:
            argv = [str(RAYDEBUG), "run", "--name", self.cluster, *arguments]
            started = self.world.start(
                self.machine, argv, user=self.name, cwd=JOBS, env=self.environ, stdout=output, stderr=output
            )
        job = Job(self, started, log)
        try:
            yield job
        except BaseException:
            print(job.text)
            raise
        finally:
            if started.poll() is None:
                self.ask("job stop", job.id, code=None)
            started.wait(30)


@dataclass
class Job:
    """A `raydebug run` at work."""

    user: User
    process: subprocess.Popen[str]
    log: Path

    @property
    def text(self) -> str:
        """All that it printed so far."""
        return self.log.read_text(errors="replace")

    @property
    def id(self) -> str:
        """The job's id, once it is printed."""
        wait_for(lambda: "job raydebug-" in self.text, f"the job's id in {self.log}")
        return self.text.partition("job ")[2].partition(":")[0]

    def end(self, code: int = 0, timeout_s: float = 60.0) -> str:
        """Wait for its end, check the exit code, and return all that it printed."""
        assert self.process.wait(timeout_s) == code, self.text
        return self.text


def debug(user: User) -> None:
    """Go the way of a user: a breakpoint on n3, values, stacks, a new breakpoint, a crash on n2, its snapshot."""
    with user.running("--", "python", "several.py", "stop", "n3") as job:
        (pause,) = user.pauses(1)
        assert (pause["ip"], pause["function"].rpartition(".")[2]) == (ADDRESSES["n3"], "stop")
        assert "n3" in user.attach(pause["id"], "p host")
        assert "paused by raydebug" in user.ask("stacks")
        assert "secret" in user.attach(pause["id"], "p sorted(locals())", "c")
        assert "done: n3 41" in job.end()
    with user.running("--", "python", "several.py", "work", "600") as job:
        wait_for(lambda: "working" in job.text, "the job's start")
        shown = user.ask("stacks", "--native")
        assert "several.py" in shown
        assert re.search(r" in \S+\.so", shown), "C frames"
        assert re.search(r"set in [2-9]", user.ask("break add", "several.py:step"))
        pauses = user.pauses(3)
        assert {one["ip"] for one in pauses} == {ADDRESSES[node] for node in NODES}
        assert {one["rank"] for one in pauses} == {None}
    with user.running("--debugger", "post-mortem", "--", "python", "several.py", "fail", "n2") as job:
        (pause,) = user.pauses(1)
        assert (pause["kind"], pause["ip"]) == ("post-mortem", ADDRESSES["n2"])
        assert "n2" in user.attach(pause["id"], "p host", "c")
        job.end(1)
        assert "boom 41 on n2" in user.ask("diagnose", job.id, code=1)
        assert "41" in user.raydebug("open", job.id, "-x", "p secret").stdout
        page = user.world.home(user.name) / "page.html"
        user.raydebug("report", job.id, "--output", str(page))
        assert "boom 41 on n2" in page.read_text()


def assert_token_is_hidden(world: World, token: str) -> None:
    """Check that a token is in no argument, variable or log of any machine."""
    secret = token.encode()
    for machine in world.inits:
        for one in world.programs(machine):
            for part in ("cmdline", "environ"):
                with contextlib.suppress(OSError):
                    assert secret not in Path(f"/proc/{one.pid}/{part}").read_bytes(), f"{part} of {one}"
        logs = [path for path in world.files(machine, "/tmp").rglob("*") if path.suffix in (".log", ".out", ".err")]
        for path in (*logs, *(world.folder / "log").iterdir(), *world.home().rglob("*.log")):
            assert secret not in path.read_bytes(), path
