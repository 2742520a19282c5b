"""What people get wrong before the first container: engines, sockets, settings, files. Three lines each."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from containers import IMAGE, remove_all, what_is_left
from raydebug.cluster import state
from runs import raydebug

ROOT = Path(__file__).resolve().parents[2]
FILES = ("-f", "docker-compose.yml", "-f", "docker-compose.cpu.yml")
UP = ("up", "--cluster", "compose", "--flavour", "core", "--dashboard-port", "0", "--gateway-port", "0", "--name")


@pytest.fixture
def name() -> Iterator[str]:
    """A name that no cluster has, removed whatever happens."""
    name = f"fx-bad-{os.getpid()}-{time.monotonic_ns() % 10**6}"
    yield name
    remove_all(name)


def three_lines(done: subprocess.CompletedProcess[str], code: int) -> str:
    """Check an exit code and that the error is three lines without a traceback; return its first line."""
    assert done.returncode == code, done.stdout + done.stderr
    last = done.stderr.strip().splitlines()[-3:]
    assert [line.split(":")[0] for line in last] == ["error", "cause", "fix"], done.stderr
    assert "Traceback" not in done.stderr
    return last[0]


# Engines (F49)


@contextlib.contextmanager
def engine_of(answer: dict[str, str] | None, path: Path) -> Iterator[str]:
    """Be an engine on a unix socket that answers every question with one document, or (None) with nothing at all."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if answer is None:
                time.sleep(30)
                return
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Api-Version", answer["ApiVersion"])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

        def address_string(self) -> str:
            return "unix"

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    with Server(str(path), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"unix://{path}"
        server.shutdown()


def up_with_engine(where: str, name: str, project: Path) -> subprocess.CompletedProcess[str]:
    """Run `up` with another engine."""
    return raydebug(*UP, name, cwd=project, env={**os.environ, "DOCKER_HOST": where})


@pytest.mark.timeout(60)
@pytest.mark.parametrize("where", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:1", "nonsense", "ssh://"])
def test_f49_no_engine(project, name, where):
    """F49: where no engine answers at DOCKER_HOST `up` says so, with the address, exit code 5."""
    done = up_with_engine(where, name, project)
    assert three_lines(done, 5) == "error: the Docker engine is not running"
    assert where in done.stderr
    assert state.find_cluster(name) is None


@pytest.mark.timeout(60)
def test_f49_engine_too_old(project, name, tmp_path):
    """F49: an engine with API 1.41 is refused, with the version that it has and the one that is needed, exit code 5."""
    with engine_of({"ApiVersion": "1.41", "Version": "20.10.24"}, tmp_path / "s") as where:
        done = up_with_engine(where, name, project)
    assert three_lines(done, 5) == "error: the Docker engine is too old (API 1.41)"
    assert "engine 20.10.24" in done.stderr
    assert "1.44 (engine 25) is needed" in done.stderr


@pytest.mark.timeout(60)
def test_f49_engine_says_nothing(project, name, tmp_path):
    """F49: an engine that does not answer is given up after 10 s, exit code 5."""
    started = time.monotonic()
    with engine_of(None, tmp_path / "s") as where:
        done = up_with_engine(where, name, project)
    assert three_lines(done, 5) == "error: the Docker engine does not answer"
    assert time.monotonic() - started < 20


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder in which every user may write."""
    folder = Path(tempfile.mkdtemp(prefix="fx-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.timeout(60)
def test_f49_no_permission(project, name, tmp_path, open_folder):
    """F49: a socket that this user may not open gives exit code 5 and names the group to join."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        path.chmod(0o000)
        # Another user may not read this environment: what a first run imports is there for the second.
        code = "import contextlib, os, sys, raydebug.cli\nsys.argv[0] = 'raydebug'\n"
        code += "where = os.environ.pop('DOCKER_HOST')\n"
        code += "os.environ['DOCKER_HOST'] = 'unix:///nowhere/s'\n"
        code += "with contextlib.suppress(SystemExit): raydebug.cli.main()\n"
        code += f"os.environ.update(DOCKER_HOST=where, XDG_STATE_HOME={str(open_folder / 'second')!r})\n"
        code += "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n" if os.getuid() == 0 else ""
        code += "raydebug.cli.main()"
        code = f"import os; os.environ['XDG_STATE_HOME'] = {str(open_folder / 'first')!r}\n{code}"
        environment = {**os.environ, "DOCKER_HOST": f"unix://{path}"}
        done = subprocess.run([sys.executable, "-c", code, *UP, name], capture_output=True, text=True, timeout=50,
                              cwd="/", env=environment, check=False)  # fmt: skip
    assert three_lines(done, 5) == "error: no permission to use the Docker engine"
    assert "usermod -aG docker" in done.stderr


@pytest.mark.timeout(60)
def test_f49_no_docker_program(project, name):
    """F49: without a `docker` on PATH `up` says so, exit code 5."""
    done = raydebug(*UP, name, cwd=project, env={**os.environ, "PATH": "/nowhere"})
    assert three_lines(done, 5) == "error: docker is not installed"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("verb", ["ps", "logs", "down"])
def test_f49_engine_gone_later(cluster, project, verb):
    """F49: with a cluster on record and no engine, `ps` and `down` give exit code 5, nothing a traceback."""
    environment = {**os.environ, "DOCKER_HOST": "unix:///nowhere/docker.sock"}
    done = raydebug(verb, "--name", cluster.name, cwd=project, env=environment)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    if verb != "logs":
        assert three_lines(done, 5) == "error: the Docker engine is not running"
    assert state.find_cluster(cluster.name) is not None


# Words and values


@pytest.mark.timeout(60)
def test_wrong_flavour(project, name):
    """A flavour that there is not is refused with those that there are, exit code 2."""
    done = raydebug("up", "--cluster", "compose", "--flavour", "gpu", "--name", name, cwd=project)
    assert three_lines(done, 2) == "error: there is no flavour 'gpu'"
    assert "core, cpu, cuda" in done.stderr


@pytest.mark.timeout(60)
@pytest.mark.parametrize("variable", ["SHM_SIZE", "PIDS_LIMIT", "HEAD_MEMORY"])
def test_value_that_compose_refuses(project, name, variable):
    """A size that is none fails in three lines with docker compose's own words, and nothing is left."""
    done = raydebug(*UP, name, cwd=project, env={**os.environ, variable: "banana"})
    three_lines(done, 1)
    assert "banana" in done.stderr or "invalid" in done.stderr
    assert what_is_left(name) == {}


@pytest.mark.timeout(90)
def test_value_that_an_entrypoint_refuses(project, name):
    """A count that is none is refused by the node itself: `up` fails at once with its words, and nothing is left."""
    done = raydebug(*UP, name, cwd=project, env={**os.environ, "WORKER_CPUS": "many"}, timeout=80)
    three_lines(done, 1)
    assert "NODE_CPUS=many is no whole number" in done.stderr
    assert what_is_left(name) == {}


# .env, as docker compose reads it


def settings(text: bytes, folder: Path) -> subprocess.CompletedProcess[str]:
    """Return what docker compose makes of the files with a .env of these bytes."""
    file = folder / "env"
    file.write_bytes(text)
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "DOCKER_HOST") if key in os.environ}
    return subprocess.run(
        ["docker", "compose", "--env-file", str(file), *FILES, "config", "--format", "json"], cwd=ROOT, env=kept,
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


@pytest.mark.timeout(60)
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
    """F50: CRLF, quotes, a BOM or an unknown key in .env change nothing of what the other lines say."""
    done = settings(text, tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["secrets"]["raydebug_token"]["file"] == "/tmp/t"
    assert document["services"]["head"]["ports"][0]["published"] == "9265"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "RAYDEBUG_TOKEN_FILE"),
        (b"RAYDEBUG_TOKEN_FILE=\n", "RAYDEBUG_TOKEN_FILE"),
        (b"RAYDEBUG_TOKEN_FILE=/tmp/t\nRAYDEBUG_DEBUGGER=brekpoint\n", "brekpoint.env"),
        (b"RAYDEBUG_TOKEN_FILE=/tmp/t\nDASHBOARD_PORT=many\n", "many"),
        (b"RAYDEBUG_TOKEN_FILE=/tmp/t\nSHM_SIZE=banana\n", "banana"),
        (b"RAYDEBUG_TOKEN_FILE=/tmp/t\nDASHBOARD PORT=1\n", "env"),
    ],
    ids=["empty file", "empty value", "debugger", "port", "size", "space in a key"],
)
def test_wrong_env_file(tmp_path, text, said):
    """F50: a value in .env that cannot be is refused before anything starts, with its name."""
    done = settings(text, tmp_path)
    assert done.returncode != 0
    assert said in done.stderr


# The token's file, as an entrypoint sees it


@pytest.mark.timeout(60)
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
    """A token that is missing, too short or open to others is refused by the container in three lines, exit code 2."""
    folder = tmp_path / "secrets"
    folder.mkdir()
    if content is not None:
        (folder / "token").write_text(content)
        (folder / "token").chmod(mode)
    user = os.getuid() or 1000
    if os.getuid() == 0:
        for path in (folder, *folder.iterdir()):
            os.chown(path, user, user)
    done = subprocess.run(
        ["docker", "run", "--rm", "--network", "none", "--user", f"{user}:{user}", "--volume", f"{folder}:/secrets:ro",
         "--env", "RAY_AUTH_MODE=token", "--env", "RAYDEBUG_TOKEN_PATH=/secrets/token", IMAGE,
         "/opt/raydebug/entrypoints/gateway"],
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert three_lines(done, 2) == what
    assert fix in done.stderr


@pytest.mark.timeout(60)
def test_token_mode_off():
    """A container without token mode refuses to start, exit code 2."""
    done = subprocess.run(
        ["docker", "run", "--rm", "--network", "none", IMAGE, "/opt/raydebug/entrypoints/head"],
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert three_lines(done, 2) == "error: Ray's token mode is off"
