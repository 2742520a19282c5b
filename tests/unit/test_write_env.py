"""`raydebug up --write-env` and the Dev Container's `initialize`: what docker compose by hand needs first."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from raydebug.settings.dotenv import check_env_file
from runs import raydebug

ROOT = Path(__file__).resolve().parents[2]
FIRST = ("COMPOSE_FILE", "RAYDEBUG_FLAVOUR", "RAYDEBUG_PROJECT", "RAYDEBUG_TOKEN_FILE", "RAYDEBUG_UID", "RAYDEBUG_GID")


def write(folder: Path) -> tuple[dict[str, str], str]:
    """Write a .env from a folder, and return its variables and what was printed."""
    environ = os.environ | {"XDG_STATE_HOME": str(folder / "state")}
    done = raydebug("up", "--cluster", "compose", "--write-env", ".env", cwd=folder, env=environ)
    assert done.returncode == 0, done.stderr
    return check_env_file(folder / ".env"), done.stderr


def assert_readable_by(token: Path, uid: int) -> None:
    """A token of 64 hex digits that its owner alone can read."""
    assert len(bytes.fromhex(token.read_text())) == 32
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert token.stat().st_uid == uid


def test_file_and_token(tmp_path: Path) -> None:
    """The folder of the call is the project, the containers' user can read the token, the next lines are printed."""
    values, printed = write(tmp_path)
    assert tuple(values)[:6] == FIRST
    assert values["RAYDEBUG_PROJECT"] == str(tmp_path)
    assert all(Path(file).is_file() for file in values["COMPOSE_FILE"].split(":"))
    token = Path(values["RAYDEBUG_TOKEN_FILE"])
    assert_readable_by(token, int(values["RAYDEBUG_UID"]))
    assert "next: docker compose up -d --wait\nnext: docker compose run --rm job python your_program.py" in printed
    was = token.read_text()
    (tmp_path / ".env").unlink()
    assert f"{token} is as it was" in write(tmp_path)[1]
    assert token.read_text() == was


@pytest.mark.skipif(os.getuid() != 0, reason="a folder of another user is made by root")
def test_initialize_without_raydebug(tmp_path: Path) -> None:
    """On a host without raydebug the Dev Container's command makes .env and token for the project's owner, once."""
    folder = tmp_path / ".devcontainer"
    folder.mkdir()
    shutil.copy(ROOT / ".devcontainer" / "initialize", folder)
    environ = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}

    def initialize() -> subprocess.CompletedProcess[str]:
        return subprocess.run([folder / "initialize"], env=environ, capture_output=True, text=True, check=False)

    os.chown(tmp_path, 0, 0)
    refused = initialize()
    assert (refused.returncode, "belongs to root" in refused.stderr) == (1, True)
    os.chown(tmp_path, 1000, 1000)
    assert initialize().returncode == 0
    values = check_env_file(tmp_path / ".env")
    assert_readable_by(Path(values["RAYDEBUG_TOKEN_FILE"]), 1000)
    assert (values["RAYDEBUG_UID"], values["RAYDEBUG_GID"]) == ("1000", "1000")
    assert (initialize().returncode, check_env_file(tmp_path / ".env")) == (0, values)
