"""A user's folders, override file, keys and sizes reach the containers of `up`; keys reach no log, image or report."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from containers import IMAGE, UP, container_of, docker, remove_all, what_is_left
from raydebug.cluster.compose.project import containers, project_of
from raydebug.cluster.find import load_cluster
from raydebug.cluster.state import Cluster
from raydebug.cluster.up import choose_ports
from runs import JOBS, raydebug, three_lines, up_in_containers

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("SHM_SIZE", "OBJECT_STORE_BYTES", "HEAD_CPUS", "WORKER_CPUS")
CANARY = "hf_canary7c41f0e2"
PROXY = "http://me:canary7c41f0e2@proxy.invalid:3128"
SPILLS = """
import pathlib, time
import ray
ray.init()
kept = [ray.put(bytes([1]) * 50 * 2**20) for _ in range(8)]  # 400 MiB, the store has 100 MB
time.sleep(1)
print("spilled", sum(f.stat().st_size for f in pathlib.Path("/spill").rglob("*") if f.is_file()) // 2**20, "MiB")
print("in /tmp", [str(f) for f in pathlib.Path("/tmp").rglob("*ray_spilled*")])
print("sums", sum(int(ray.get(one)[0]) for one in kept))
"""
SEEN = """
import os
print("data:", open("/data/rows.txt").read().strip())
try:
    open("/data/new", "w")
except OSError as error:
    print("data is", error.strerror)
print("override:", os.environ["FROM_OVERRIDE"])
print("token has", len(os.environ["HF_TOKEN"]), "characters")
"""


@pytest.fixture(scope="module")
def given(private_state: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Path]]:
    """A cluster with a mount, an override file and a file with keys."""
    folder = tmp_path_factory.mktemp("given")
    project, data = folder / "project", folder / "data"
    for one in (folder, project, data):
        one.mkdir(exist_ok=True)
        one.chmod(0o755)
    for path in JOBS.glob("*.py"):
        shutil.copy(path, project)
    (data / "rows.txt").write_text("17 rows\n")
    (project / "seen.py").write_text(SEEN)
    (project / "spills.py").write_text(SPILLS)
    (project / "docker-compose.override.yml").write_text(
        "services:\n  head: &it\n    environment:\n      FROM_OVERRIDE: laid over\n  worker: *it\n"
    )
    keys = folder / "keys"
    keys.touch(0o600)
    keys.write_text(f"HF_TOKEN={CANARY}\nWANDB_API_KEY={CANARY}\nHTTPS_PROXY={PROXY}\nNO_PROXY=*\n")
    name = f"fx-given-{os.getpid()}"
    done = up_in_containers(name, project, "--mount", f"{data}:/data:ro", "--env-file", str(keys))
    assert done.returncode == 0, done.stderr
    assert "canary" not in done.stdout + done.stderr
    yield load_cluster(name), project
    assert raydebug("down", "--name", name).returncode == 0
    volumes = docker("volume", "ls", "-q", "--filter", f"label=com.docker.compose.project={project_of(name)}")
    assert not [one for one in volumes.split() if one.endswith("_spill")]
    remove_all(name)


@pytest.mark.timeout(240)
def test_mount_override_and_keys(given):
    """A job reads the mounted folder, cannot write to it, and gets the override file's settings and the keys."""
    cluster, project = given
    done = raydebug("run", "--name", cluster.name, "--", "python", "seen.py", cwd=project)
    assert done.returncode == 0, done.stderr
    for line in ("data: 17 rows", "data is Read-only file system", "override: laid over", "token has 17 characters"):
        assert line in done.stdout
    assert "canary" not in done.stdout + done.stderr


@pytest.mark.timeout(120)
def test_objects_spill_to_a_volume(given):
    """Objects that do not fit in the object store are spilled to the volume /spill, never to /tmp, and restored."""
    cluster, project = given
    done = raydebug("run", "--name", cluster.name, "--", "python", "spills.py", cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    spilled = next(line for line in done.stdout.splitlines() if line.startswith("spilled"))
    assert int(spilled.split()[1]) >= 200
    assert "in /tmp []" in done.stdout
    assert "sums 8" in done.stdout
    head = container_of(cluster, "head")
    fstype = docker("exec", head.name, "stat", "--file-system", "--format", "%T", "/spill").strip()
    assert fstype != "tmpfs"


@pytest.mark.timeout(120)
def test_no_key_is_shown(given, tmp_path):
    """S28: no value of the keys is in an image, a log, a report, our state, or the JSON of a verb; not with --debug."""
    cluster, project = given
    option = ("--name", cluster.name)
    assert raydebug("run", *option, "--", "python", "cases.py", "pm_driver", cwd=project).returncode != 0
    said = {
        " ".join(verb): raydebug(*verb, *option, cwd=project)
        for verb in (
            ("ps", "--json"), ("paused", "--json"), ("ps", "--processes", "--json"), ("job", "list", "--json"),
            ("logs",), ("--debug", "up", "--json"), ("check", "env", "--json"),
        )
    }  # fmt: skip
    said["report"] = raydebug("report", cwd=project)
    assert said["report"].returncode == 0, said["report"].stderr
    printed = {verb: done.stdout + done.stderr for verb, done in said.items()}
    printed["docker logs"] = "".join(docker("logs", one.name) for one in containers(cluster))
    printed["image"] = docker("image", "inspect", IMAGE) + docker("image", "history", "--no-trunc", IMAGE)
    head = container_of(cluster, "head")
    assert CANARY in docker("inspect", head.name), "a container's environment has them: that is what it is for"
    kept = Path(os.environ["XDG_STATE_HOME"])
    printed |= {str(f): f.read_text(errors="replace") for f in kept.rglob("*") if f.is_file()}
    assert {"cluster.json", "report.html"} <= {Path(f).name for f in printed}
    assert [where for where, text in printed.items() if "canary" in text] == []


# Refusals before anything is created


def test_dry_run(project, name):
    """`up --dry-run` shows each size with its arithmetic and the command, and creates nothing."""
    env = {k: v for k, v in os.environ.items() if k not in ("SHM_SIZE", "OBJECT_STORE_BYTES", "HEAD_CPUS")}
    done = raydebug(*UP, name, "--dry-run", cwd=project, env=env)
    assert done.returncode == 0, done.stderr
    names = [line.partition("=")[0] for line in done.stdout.splitlines()]
    assert {"HEAD_MEMORY", "SHM_SIZE", "OBJECT_STORE_BYTES", "PIDS_LIMIT", "HEAD_CPUS"} <= set(names)
    assert all(" # " in line for line in done.stdout.splitlines()[:-1])
    assert f"--project-name raydebug-{name}" in done.stdout.splitlines()[-1]
    document = json.loads(raydebug(*UP, name, "--dry-run", "--json", cwd=project, env=env).stdout)
    assert set(document["settings"]) == set(names[:-1])
    assert what_is_left(name) == {}


@pytest.mark.timeout(300)
def test_compose_by_hand(tmp_path):
    """What `raydebug up --write-env` writes and prints is all that a project of two files needs for docker compose."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "shapes.py").write_text("def product(shape):\n    return shape[0] * shape[1]\n")
    (project / "train.py").write_text(
        "import ray\nimport shapes\n\nprint('product:', ray.get(ray.remote(shapes.product).remote((6, 7))))\n"
    )
    name = f"fx-hand-{os.getpid()}"
    ports = choose_ports({}, {}, {8265, 5678}, ("dashboard", "gateway"))
    kept = {key: os.environ[key] for key in ("PATH", "DOCKER_HOST", *SMALL) if key in os.environ} | {
        "HOME": str(tmp_path),
        "COMPOSE_PROJECT_NAME": name,
        "RAYDEBUG_IMAGE": IMAGE,
        "DASHBOARD_PORT": str(ports["dashboard"]),
        "GATEWAY_PORT": str(ports["gateway"]),
    }

    def compose(*words: str) -> str:
        argv = ["docker", "compose", *words]
        done = subprocess.run(argv, cwd=project, env=kept, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    before = subprocess.run(
        ["docker", "compose", "config"], cwd=ROOT, env=kept, capture_output=True, text=True, check=False
    )
    assert "is missing a value: type raydebug up --cluster compose --write-env .env" in before.stderr
    flavour = ("--flavour", "core")
    done = raydebug("up", "--cluster", "compose", *flavour, "--write-env", ".env", cwd=project, env=os.environ | kept)
    assert done.returncode == 0, done.stderr
    assert "next: docker compose run --rm job python your_program.py" in done.stderr
    try:
        compose("up", "-d", "--wait")
        assert "product: 42" in compose("run", "--rm", "job", "python", "train.py")
    finally:
        compose("down", "--volumes", "--timeout", "3", "--remove-orphans")
    again = raydebug("up", "--cluster", "compose", *flavour, "--write-env", ".env", cwd=project, env=os.environ | kept)
    assert three_lines(again, 2) == "error: cannot write .env"
