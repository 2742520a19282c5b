"""The addresses at which the containers' servers listen (entrypoints/)."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from raydebug.errors import RaydebugError

ENTRYPOINTS = Path(__file__).resolve().parents[2] / "entrypoints"


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch):
    """The common module of the entrypoints, which replaces this process's hooks while it is imported."""
    monkeypatch.syspath_prepend(str(ENTRYPOINTS))
    for hook in ("excepthook", "breakpointhook"):
        monkeypatch.setattr(sys, hook, getattr(sys, hook))
    import node

    return node


@pytest.mark.parametrize("name", ["DASHBOARD_LISTEN", "GATEWAY_LISTEN", "DIAL_LISTEN"])
def test_listen_at(node, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A server listens at the address in its variable; without it, at all addresses of the container."""
    monkeypatch.delenv(name, raising=False)
    assert node.listen_at(name, 5679) == ("0.0.0.0", 5679)
    monkeypatch.setenv(name, "127.0.0.1:6000")
    assert node.listen_at(name, 5679) == ("127.0.0.1", 6000)


@pytest.mark.parametrize("value", ["5679", "127.0.0.1", ":5679", "127.0.0.1:", "127.0.0.1:x"])
def test_no_address(node, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """A variable that is not ADDRESS:PORT is refused, with an example."""
    monkeypatch.setenv("DIAL_LISTEN", value)
    with pytest.raises(RaydebugError) as refused:
        node.listen_at("DIAL_LISTEN", 5679)
    assert refused.value.what == f"DIAL_LISTEN={value} is not an ADDRESS:PORT"
    assert refused.value.fix == "DIAL_LISTEN=127.0.0.1:5679"


def test_addresses_of_the_gateway(node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    """The gateway listens for clients at GATEWAY_LISTEN and for processes at DIAL_LISTEN."""
    token = tmp_path / "token"
    token.write_text("0" * 64)
    token.chmod(0o600)
    for name, value in (
        ("RAY_AUTH_MODE", "token"),
        ("RAYDEBUG_TOKEN_PATH", str(token)),
        ("GATEWAY_LISTEN", "127.0.0.1:6678"),
        ("DIAL_LISTEN", "127.0.0.1:6679"),
    ):
        monkeypatch.setenv(name, value)
    started: list[list[str]] = []

    def execv(_program: str, argv: list[str]) -> None:
        started.append(argv)
        raise SystemExit

    monkeypatch.setattr(os, "execv", execv)
    with pytest.raises(SystemExit):
        runpy.run_path(str(ENTRYPOINTS / "gateway"), run_name="__main__")
    assert started[0][1:4] == ["-P", "-m", "raydebug.gateway"]
    assert started[0][4:] == [
        *("--host", "127.0.0.1", "--client-port", "6678"),
        *("--dial-host", "127.0.0.1", "--dial-port", "6679"),
        *("--numbers-file", "/gateway/numbers"),
    ]
    assert "clients on 6678, processes on 6679" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "returned"), [(0, 0), (3, 3), (-9, 137), (None, 1)])
def test_exit_code_of_a_job(node, monkeypatch: pytest.MonkeyPatch, code: int | None, returned: int) -> None:
    """The job service returns the exit code of the job; of one that a signal has ended, 128 plus the signal."""

    class Client:
        def __init__(self, _dashboard: str) -> None: ...

        def submit_job(self, **_job: object) -> None: ...

        async def tail_job_logs(self, _job: str):
            yield ""

        def get_job_status(self, _job: str) -> object:
            return SimpleNamespace(is_terminal=lambda: True)

        def get_job_info(self, _job: str) -> object:
            return SimpleNamespace(driver_exit_code=code)

    module = ModuleType("ray.job_submission")
    monkeypatch.setattr(module, "JobSubmissionClient", Client, raising=False)
    monkeypatch.setitem(sys.modules, "ray.job_submission", module)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:9")
    monkeypatch.setattr(sys, "argv", ["job", "python", "train.py"])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    for name in ("check_token", "wait_for_head"):
        monkeypatch.setattr(node, name, lambda *_: None)
    codes: list[int] = []
    monkeypatch.setattr(node, "run", lambda main: codes.append(main()))
    runpy.run_path(str(ENTRYPOINTS / "job"), run_name="__main__")
    assert codes == [returned]
