"""Invalid words, values and files are refused before the first container, in three lines each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from containers import IMAGE, UP, what_is_left
from runs import raydebug, three_lines

ROOT = Path(__file__).resolve().parents[2]
FILES = ("-f", "docker-compose.yml", "-f", "docker-compose.cpu.yml")


# Words and values


@pytest.mark.parametrize("variable", ["SHM_SIZE", "PIDS_LIMIT", "HEAD_MEMORY"])
def test_value_that_compose_refuses(project, name, variable):
    """An invalid size is refused before a container is created, with docker compose's own message, exit code 2."""
    done = raydebug(*UP, name, cwd=project, env={**os.environ, variable: "banana"})
    assert three_lines(done, 2) == "error: docker compose cannot read the settings of the containers"
    assert "banana" in done.stderr or "invalid" in done.stderr
    assert "creating containers" not in done.stderr
    assert what_is_left(name) == {}


@pytest.mark.timeout(90)
def test_value_that_an_entrypoint_refuses(project, name):
    """The node itself refuses an invalid count: `up` fails at once with its message, and leaves nothing behind."""
    done = raydebug(*UP, name, cwd=project, env={**os.environ, "WORKER_CPUS": "many"}, timeout=80)
    three_lines(done, 1)
    assert "NODE_CPUS=many is not a whole number" in done.stderr
    assert what_is_left(name) == {}


# .env, as docker compose reads it


def settings(text: bytes, folder: Path) -> subprocess.CompletedProcess[str]:
    """Return the configuration that docker compose computes from the files with a .env of these bytes."""
    file = folder / "env"
    file.write_bytes(text)
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "DOCKER_HOST") if key in os.environ}
    if b"RAYDEBUG_UID" not in text:
        kept |= {"RAYDEBUG_UID": "4711", "RAYDEBUG_GID": "4711"}
    return subprocess.run(
        ["docker", "compose", "--env-file", str(file), *FILES, "config", "--format", "json"], cwd=ROOT, env=kept,
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        b"RAYDEBUG_TOKEN_FILE=/tmp/t\nDASHBOARD_PORT=9265\n",
        b"RAYDEBUG_TOKEN_FILE=/tmp/t\r\nDASHBOARD_PORT=9265\r\n",
        b"RAYDEBUG_TOKEN_FILE=\"/tmp/t\"\nDASHBOARD_PORT='9265'\n",
        b"\xef\xbb\xbfRAYDEBUG_TOKEN_FILE=/tmp/t\nDASHBOARD_PORT=9265\n",
        b"RAYDEBUG_TOKEN_FILE=/tmp/t\nNO_SUCH_KEY=1\n# a comment\n\nexport DASHBOARD_PORT=9265\n",
    ],
    ids=["plain", "CRLF", "quotes", "BOM", "unknown key"],
)
def test_forms_of_env_file(tmp_path, text):
    """F50: CRLF, quotes, a BOM or an unknown key in .env do not change the values of the other lines."""
    done = settings(text, tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["secrets"]["raydebug_token"]["file"] == "/tmp/t"
    assert document["services"]["head"]["ports"][0]["published"] == "9265"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "RAYDEBUG_TOKEN_FILE"),
        (b"RAYDEBUG_TOKEN_FILE=\n", "RAYDEBUG_TOKEN_FILE"),
        (b"RAYDEBUG_TOKEN_FILE=/tmp/t\nRAYDEBUG_UID=\n", "RAYDEBUG_UID is missing a value"),
        (b"RAYDEBUG_TOKEN_FILE=/tmp/t\nRAYDEBUG_DEBUGGER=brekpoint\n", "brekpoint.env"),
        (b"RAYDEBUG_TOKEN_FILE=/tmp/t\nDASHBOARD_PORT=many\n", "many"),
        (b"RAYDEBUG_TOKEN_FILE=/tmp/t\nSHM_SIZE=banana\n", "banana"),
        (b"RAYDEBUG_TOKEN_FILE=/tmp/t\nDASHBOARD PORT=1\n", "env"),
    ],
    ids=["empty file", "empty value", "no user", "debugger", "port", "size", "space in a key"],
)
def test_wrong_env_file(tmp_path, text, said):
    """F50: an invalid value in .env is refused before anything starts, with its name."""
    done = settings(text, tmp_path)
    assert done.returncode != 0
    assert said in done.stderr


def test_f50_up_in_a_checkout_with_a_wrong_env_file(tmp_path, name):
    """F50: `up` in a checkout refuses an invalid .env before it creates anything, with the line, exit code 2."""
    for part in ("env", "docker-compose.yml", "docker-compose.cpu.yml"):
        (tmp_path / part).symlink_to(ROOT / part)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / ".env").write_text("SHM_SIZE=banana\n")
    done = subprocess.run(
        [sys.executable, "-m", "raydebug", *UP, name], cwd=tmp_path, capture_output=True, text=True, timeout=50,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")}, check=False,
    )  # fmt: skip
    assert three_lines(done, 2) == f"error: cannot use {tmp_path / '.env'}"
    assert "cause: line 1: SHM_SIZE=banana is not a size, such as 10gb" in done.stderr
    assert what_is_left(name) == {}


# Refusals of the entrypoints


def entrypoint(
    role: str, folder: Path, token: str | None, mode: int = 0o600, *options: str
) -> subprocess.CompletedProcess[str]:
    """Run an entrypoint in a separate container, with this token in a file of this mode."""
    folder.mkdir()
    if token is not None:
        (folder / "token").write_text(token)
        (folder / "token").chmod(mode)
    user = os.getuid() or 1000
    if os.getuid() == 0:
        for path in (folder, *folder.iterdir()):
            os.chown(path, user, user)
    return subprocess.run(
        ["docker", "run", "--rm", "--network", "none", "--user", f"{user}:{user}", "--volume", f"{folder}:/secrets:ro",
         "--env", "RAY_AUTH_MODE=token", "--env", "RAYDEBUG_TOKEN_PATH=/secrets/token", *options, IMAGE,
         f"/opt/raydebug/entrypoints/{role}"],
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "mode", "what", "fix"),
    [
        (None, 0, "error: there is no token", "RAYDEBUG_TOKEN_FILE"),
        ("", 0o600, "error: the token is too short", "openssl rand -hex 32"),
        ("abc", 0o600, "error: the token is too short", "openssl rand -hex 32"),
        ("a" * 64, 0o644, "error: the token is open to every user of the host", "chmod 600"),
    ],
    ids=["missing", "empty", "short", "open"],
)
def test_token_file(tmp_path, content, mode, what, fix):
    """The container refuses a missing or short token, or one readable by others, in three lines, exit code 2."""
    done = entrypoint("gateway", tmp_path / "secrets", content, mode)
    assert three_lines(done, 2) == what
    assert fix in done.stderr


def test_token_mode_off():
    """A container without token mode refuses to start, exit code 2."""
    done = subprocess.run(
        ["docker", "run", "--rm", "--network", "none", IMAGE, "/opt/raydebug/entrypoints/head"],
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert three_lines(done, 2) == "error: Ray's token mode is off"


@pytest.mark.parametrize("role", ["head", "worker"])
def test_f51_shared_memory_of_a_node(tmp_path, role):
    """F51: a node whose object store does not fit in its shared memory refuses to start, with both sizes, exit 2."""
    done = entrypoint(
        role, tmp_path / "secrets", "a" * 64, 0o600, "--shm-size=64m", "--env=OBJECT_STORE_BYTES=99999999"
    )
    assert three_lines(done, 2) == "error: the object store (99999999 bytes) does not fit in shared memory"
    assert "this container's shared memory has 67108864 bytes" in done.stderr
