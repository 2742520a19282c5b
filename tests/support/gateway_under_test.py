"""A gateway and plain Python processes that dial in: the whole path of a pause without Ray."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forked import Forked
from raydebug.cluster.state import Remote
from raydebug.cluster.up import choose_ports
from raydebug.dap import DapSession
from raydebug.protocol import wire

TOKEN = "t" * 64
PAUSES = "def work():\n    secret = 41\n    breakpoint()\n    return secret\n\nprint('went on', work())\n"
EDITOR = {"clientName": "an editor", "supportsStartDebuggingRequest": True}


class Editor(DapSession):
    """A client with `startDebugging`, as in editors, that records the requested configurations."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.children: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        super().__init__(*arguments, **options)

    def _take(self, message: wire.Message) -> None:
        if message.get("type") == "request":
            assert (message["command"], message["arguments"]["request"]) == ("startDebugging", "attach")
            self.children.put_nowait(message["arguments"]["configuration"])
            self._writer.write(wire.encode(wire.response(next(self._seq), message)))
            return
        super()._take(message)

    async def next_child(self) -> dict[str, Any]:
        """Return the configuration of the next requested session."""
        async with asyncio.timeout(20):
            return await self.children.get()


@dataclass
class GatewayUnderTest:
    """A real gateway with a token file, on free ports.

    It has the attributes of a cluster that `gateway_client` reads: a test passes it where a cluster is expected.
    """

    folder: Path
    gateway_port: int
    dial_port: int
    process: Forked | subprocess.Popen[bytes] = field(init=False)
    programs: list[subprocess.Popen[str]] = field(default_factory=list)
    name: str = "test"
    kind: str = "local"
    least_poll_s: float = 0.0
    is_joined: bool = False
    is_of_nodes: bool = False
    repair: str = ""
    project: str = ""
    has_gateway: bool = True
    gateway_host: str = "127.0.0.1"
    dashboard: str = "http://127.0.0.1:9"
    token: str = TOKEN
    dashboard_token: str = TOKEN
    remote: Remote = field(default_factory=Remote)
    options: tuple[str, ...] = ()  # further ones of the gateway's command line
    run_on: Callable[..., list[str]] | None = None  # makes the argv that runs a program on another host

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    def open(self) -> None:
        """Start the gateway on its ports, also after a kill."""
        arguments = ["--client-port", str(self.gateway_port), "--dial-port", str(self.dial_port)]
        arguments += ["--host", self.gateway_host, "--numbers-file", str(self.folder / "numbers"), *self.options]
        environment = {**os.environ, "RAYDEBUG_TOKEN_PATH": str(self.token_file)}
        log = self.folder / "gateway.log"  # a pipe that nobody reads would hold the gateway up one day
        with log.open("wb") as file:
            if self.run_on is None:
                self.process = Forked("gateway", ["gateway", *arguments], file.fileno(), file.fileno(), environment)
            else:
                argv = self.run_on(sys.executable, "-m", "raydebug.gateway", *arguments)
                self.process = subprocess.Popen(argv, env=environment, stderr=file)
        deadline = time.monotonic() + 40
        while "listening" not in self.log:
            assert time.monotonic() < deadline, self.log
            assert self.process.poll() is None, self.log
            time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL the gateway."""
        self.process.kill()
        self.process.wait(10)

    @property
    def log(self) -> str:
        """The gateway's log."""
        return (self.folder / "gateway.log").read_text()

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that dials in."""
        dial = {"RAYDEBUG_GATEWAY": f"127.0.0.1:{self.dial_port}", "RAYDEBUG_TOKEN_PATH": str(self.token_file)}
        return {**os.environ, **dial}

    @property
    def client_env(self) -> dict[str, str]:
        """The environment of a client inside the cluster of this gateway: an editor, `raydebug attach`."""
        return {
            **os.environ,
            "RAYDEBUG_DASHBOARD": "http://127.0.0.1:1",
            "RAYDEBUG_GATEWAY_CLIENTS": f"{self.gateway_host}:{self.gateway_port}",
            "RAYDEBUG_TOKEN_PATH": str(self.token_file),
            "XDG_STATE_HOME": str(self.folder / "state"),
        }

    def start(self, program: str, **variables: str) -> subprocess.Popen[str]:
        """Start a Python program that dials in to the gateway."""
        path = self.folder / f"program{len(self.programs)}.py"
        path.write_text(program)
        environment = {**self.environment, **variables}
        argv = [sys.executable, str(path)] if self.run_on is None else self.run_on(sys.executable, str(path))
        self.programs.append(
            subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        )  # fmt: skip
        return self.programs[-1]

    def pauses(self, count: int = 1, *, state: str = "waiting") -> list[dict[str, Any]]:
        """Wait until this many pauses are in a state, and return them."""
        from raydebug.client.gateway_client import fetch_pauses

        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            found = [p for p in fetch_pauses(self) if p["state"] == state]  # type: ignore[arg-type]
            if len(found) == count:
                return found
            time.sleep(0.05)
        for program in self.programs:
            program.kill()
        said = [program.communicate() for program in self.programs]
        raise AssertionError(f"{len(found)} pauses are {state} instead of {count}; the programs said: {said}")

    async def connect(self) -> DapSession:
        session = await DapSession.connect(self.gateway_host, self.gateway_port)
        await session.request("initialize", {"clientName": "a test"})
        return session

    async def connect_editor(self) -> Editor:
        session = await Editor.connect(self.gateway_host, self.gateway_port)
        await session.request("initialize", EDITOR)
        return session

    async def attach(self, target: str, **arguments: Any) -> tuple[DapSession, dict[str, Any]]:
        """Attach, and return the session with the body of its first `stopped`."""
        session = await self.connect()
        await session.request("attach", {"token": self.token, "target": target, **arguments})
        await session.request("configurationDone")
        return session, (await session.next_event("stopped", timeout_s=20))["body"]

    @contextlib.contextmanager
    def held(self, pause_id: str) -> Iterator[None]:
        """Hold a pause as another client, in the block."""
        held, done = threading.Event(), threading.Event()

        async def hold() -> None:
            session, _ = await self.attach(pause_id)
            held.set()
            await asyncio.to_thread(done.wait, 60)
            await session.close()

        holder = threading.Thread(target=asyncio.run, args=(hold(),))
        holder.start()
        try:
            assert held.wait(60)
            yield
        finally:
            done.set()
            holder.join()

    def resume(self, pause_id: str) -> None:
        """Attach to a pause, let it go on, and leave."""

        async def go_on() -> None:
            session, stopped = await self.attach(pause_id)
            await session.request("continue", {"threadId": stopped["threadId"]})
            await session.close()

        visit(self, go_on)


@contextlib.contextmanager
def open_gateway(
    folder: Path, *options: str, host: str = "127.0.0.1", run_on: Callable[..., list[str]] | None = None
) -> Iterator[GatewayUnderTest]:
    """Start a gateway of its own on free ports; end it with all that dialled it.

    Args:
        folder: for its files.
        options: further ones of its command line.
        host: where it listens for clients.
        run_on: makes the argv that runs a program on another host, the gateway's own.
    """
    (folder / "token").write_text(TOKEN)
    (folder / "numbers").touch()
    ports = choose_ports({}, {}, {5678, 8265})
    gateway = GatewayUnderTest(
        folder, ports["gateway"], ports["dial"], gateway_host=host, options=options, run_on=run_on
    )
    gateway.open()
    try:
        yield gateway
    finally:
        for program in gateway.programs:
            program.kill()
            program.communicate()
        gateway.process.terminate()
        gateway.process.wait(5)


def visit(gateway: GatewayUnderTest, work: Callable[[], Awaitable[Any]], *, limit_s: float = 60.0) -> Any:
    """Run an asynchronous piece of a test with a limit."""

    async def limited() -> Any:
        async with asyncio.timeout(limit_s):
            return await work()

    return asyncio.run(limited())


@contextlib.asynccontextmanager
async def started(configuration: dict[str, Any]) -> AsyncIterator[Editor]:
    """Start the adapter of a configuration as VS Code does, and attach through it."""
    argv = [configuration["debugAdapterPython"], configuration["debugAdapterPath"]]
    process = await asyncio.create_subprocess_exec(*argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=2**20)
    assert process.stdin is not None
    assert process.stdout is not None
    session = Editor(process.stdout, process.stdin)
    try:
        await session.request("initialize", EDITOR)
        await session.request("attach", configuration)
        await session.next_event("initialized", timeout_s=10)
        await session.request("configurationDone")
        yield session
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
