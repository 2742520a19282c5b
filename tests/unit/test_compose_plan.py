"""What a user gives a cluster of containers: mounts, keys, compose files; what cannot be is refused in three lines."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raydebug.cluster.compose import engine, plan, preflight
from raydebug.cluster.compose.lifecycle import _look_at_project_file, take_down
from raydebug.cluster.compose.plan import Mount, as_compose, check_keys, files_for, hub_mount, parse_mounts
from raydebug.cluster.compose.project import settings_of, show_logs
from raydebug.cluster.compose.project_file import foreign_rights, mounts_of
from raydebug.cluster.state import Cluster
from raydebug.errors import RaydebugError
from raydebug.settings.files import compose_dir

GIB = 1024**3


def refusal(*arguments: object) -> RaydebugError:
    with pytest.raises(RaydebugError) as failure:
        parse_mounts(*arguments)  # type: ignore[arg-type]
    assert failure.value.exit_code == 2
    return failure.value


# Mounts


def test_mounts_of_option_and_variable(tmp_path):
    """`--mount` and RAYDEBUG_MOUNTS are read as Docker writes a mount; the compose file has them for nodes and jobs."""
    data, models = tmp_path / "data", tmp_path / "models"
    data.mkdir()
    models.mkdir()
    found = parse_mounts([f"{data}:/data:ro"], f"{models}:/models, {models}:/again:rw,")
    assert found == [
        Mount(str(data), "/data", read_only=True),
        Mount(str(models), "/models", read_only=False),
        Mount(str(models), "/again", read_only=False),
    ]
    assert [str(one) for one in found[:2]] == [f"{data}:/data:ro", f"{models}:/models"]
    services = json.loads(as_compose(found))["services"]
    assert set(services) == {"head", "worker", "job"}
    assert services["worker"]["volumes"][0] == {
        "type": "bind", "source": str(data), "target": "/data", "read_only": True, "bind": {"create_host_path": False},
    }  # fmt: skip
    assert "environment" not in services["worker"]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("/tmp", "it is neither SOURCE:TARGET nor SOURCE:TARGET:ro"),
        ("/tmp:", "it is neither SOURCE:TARGET nor SOURCE:TARGET:ro"),
        ("/tmp:/data:ro:z", "it is neither SOURCE:TARGET nor SOURCE:TARGET:ro"),
        ("/tmp:/data:rx", "its mode is 'rx'"),
        ("data:/data", "'data' is not an absolute path"),
        ("/tmp/$HOME:/data", "'/tmp/$HOME' is not an absolute path"),
        ("/tmp/a b:/data", "'/tmp/a b' is not an absolute path"),
        ("/tmp/../etc:/data", "'/tmp/../etc' is not an absolute path"),
        ("/tmp:/da\nta", "is not an absolute path"),
        ("/tmp:/workspace", "the containers have /workspace for themselves"),
        ("/tmp:/run/secrets/raydebug_token", "the containers have /run/secrets/raydebug_token for themselves"),
        ("/:/data", "/ would give the containers this machine"),
        ("/proc:/data", "/proc would give the containers this machine"),
        ("/proc/sys:/data", "/proc/sys would give the containers this machine"),
        ("/run:/data", "/run would give the containers this machine"),
        ("/nowhere:/data:ro", "there is no /nowhere on this machine"),
    ],
)
def test_mounts_that_cannot_be(text, cause):
    """A mount without a colon, of a missing folder, with other characters or over a place of ours is refused."""
    failure = refusal([text], "")
    assert failure.what == f"--mount {text!r} cannot be mounted"
    assert cause in failure.cause


def test_the_variable_is_named():
    """What is wrong in RAYDEBUG_MOUNTS is said of it; two mounts at one place are refused."""
    assert refusal([], "/tmp:/data;rm").what == "RAYDEBUG_MOUNTS '/tmp:/data;rm' cannot be mounted"
    assert refusal(["/tmp:/data"], "/usr:/data").what == "/data is mounted twice"


def test_an_engines_socket_is_no_mount(tmp_path):
    """No way leads to the socket of an engine, by a link neither: docker's, containerd's, or one at another place."""
    (tmp_path / "link").symlink_to("/var/run/docker.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "engine"))
        for source in (f"{tmp_path}/link", f"{tmp_path}/engine", "/run/containerd", "/run/podman/podman.sock"):
            assert "would give the containers this machine" in refusal([f"{source}:/data"], "").cause


def test_hub_cache(tmp_path):
    """--hf-cache mounts the user's cache and points HF_HOME at it; a missing one is an error."""
    mount = hub_mount({"HF_HOME": str(tmp_path)})
    assert mount == Mount(str(tmp_path), "/hf", read_only=False)
    assert json.loads(as_compose([mount]))["services"]["head"]["environment"] == {"HF_HOME": "/hf"}
    with pytest.raises(RaydebugError) as failure:
        hub_mount({"HF_HOME": "/nowhere"})
    assert failure.value.cause == "there is no /nowhere on this machine"


# Keys


def test_keys_are_for_their_owner_alone(tmp_path):
    """A file of keys of mode 0600 is taken; one that others can read, or that is missing, is refused."""
    path = tmp_path / "keys"
    path.write_text("HF_TOKEN=hf_canary\nHTTPS_PROXY=http://me:canary@proxy:3128\n")
    path.chmod(0o600)
    assert check_keys(path) == path
    for mode in (0o640, 0o604, 0o660):
        path.chmod(mode)
        with pytest.raises(RaydebugError) as failure:
            check_keys(path)
        assert str(failure.value) == (
            f"error: cannot use {path}\ncause: its mode is {mode:o}: others can read your keys\nfix: chmod 600 {path}"
        )
    for wrong in (tmp_path / "none", tmp_path):
        with pytest.raises(RaydebugError):
            check_keys(wrong)


def test_a_broken_line_of_keys_is_not_shown(tmp_path):
    """A line that is no KEY=VALUE is named by its number: its text may be a key."""
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text("A=1\nhf_canary\n")
    with pytest.raises(RaydebugError) as failure:
        check_keys(path)
    assert failure.value.cause == "line 2: it is not KEY=VALUE"
    assert "canary" not in str(failure.value)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a file to another user")
def test_keys_of_another_user(tmp_path):
    """Another user's file is refused: that user could change what the nodes get."""
    path = tmp_path / "keys"
    path.touch(0o600)
    os.chown(path, 4711, 4711)
    with pytest.raises(RaydebugError) as failure:
        check_keys(path)
    assert failure.value.cause == "it belongs to uid 4711, and you are 0"


# Compose files


def test_override_file(tmp_path):
    """The project's override file is laid over ours, unless it belongs to a compose file of the project's own."""
    ours = [compose_dir() / "docker-compose.yml", compose_dir() / "docker-compose.cpu.yml"]
    assert files_for("cpu", {}, tmp_path) == ours
    assert files_for("cuda", {}, tmp_path) == ours[:1]
    override = tmp_path / "docker-compose.override.yml"
    override.write_text("services: {}\n")
    assert files_for("core", {}, tmp_path) == [*ours, override]
    (tmp_path / "compose.yaml").write_text("services: {}\n")
    assert files_for("core", {}, tmp_path) == ours


def test_compose_file_names_all(tmp_path, monkeypatch):
    """COMPOSE_FILE names all files, as for docker compose: no other is laid over them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docker-compose.override.yml").write_text("services: {}\n")
    variables = {"COMPOSE_FILE": f"mine.yml{os.pathsep}/etc/other.yml"}
    assert files_for("cpu", variables, tmp_path) == [tmp_path / "mine.yml", Path("/etc/other.yml")]
    variables = {"COMPOSE_FILE": "a.yml,b.yml", "COMPOSE_PATH_SEPARATOR": ","}
    assert files_for("cpu", variables, tmp_path) == [tmp_path / "a.yml", tmp_path / "b.yml"]


# Sizes


def test_what_the_user_sets_is_kept(monkeypatch):
    """A size of the user's own wins; one of shared memory takes all of ours for it away, as they have to fit."""

    class Found:
        def machine(self) -> tuple[int, int]:
            return 8, 16 * GIB

    def names(variables: dict[str, str]) -> set[str]:
        _, sizes = plan.sizes_of(Found(), "cpu", variables, workers=1, logical_gpus=0)  # type: ignore[arg-type]
        return {one.name for one in sizes}

    every = names({})
    assert len(every) == 10
    assert every - names({"HEAD_MEMORY": "3g", "WORKER_CPUS": ""}) == {"HEAD_MEMORY"}
    assert every - names({"SHM_SIZE": "3g"}) == set(plan.TOGETHER)


def test_limit_larger_than_the_host():
    """A memory limit above the machine's memory is refused, with both numbers."""
    preflight.refuse_sizes({"services": {"head": {"mem_limit": str(8 * GIB)}, "x": {}}}, 8 * GIB)
    with pytest.raises(RaydebugError) as failure:
        preflight.refuse_sizes({"services": {"worker": {"mem_limit": str(64 * GIB)}}}, 16 * GIB)
    assert str(failure.value) == (
        "error: WORKER_MEMORY is larger than this machine's memory\n"
        "cause: a worker may take 68719476736 bytes, and the machine has 17179869184\n"
        "fix: unset WORKER_MEMORY (environment, .env): `raydebug up` chooses one that fits; `up --dry-run` shows it"
    )


# A project's own compose file


def settings(**head: object) -> dict[str, Any]:
    """Return what `docker compose config` prints of our files, with other settings of the head."""
    service = {"image": "raydebug:cpu", "command": ["/opt/raydebug/entrypoints/head"], "cap_drop": ["ALL"],
               "security_opt": ["no-new-privileges:true"], "user": "1000:1000", "mem_limit": "1",
               "ports": [{"host_ip": "127.0.0.1", "target": 8265}], "environment": {"RAY_AUTH_MODE": "token"},
               "volumes": [{"type": "bind", "source": "/p", "target": "/workspace"}]}  # fmt: skip
    return {"services": {"head": {**service, **head}}, "volumes": {"cache": {"name": "x_cache"}},
            "networks": {"default": {}}, "secrets": {"raydebug_token": {"file": "/t"}}}  # fmt: skip


@pytest.mark.parametrize(
    "setting",
    [{"privileged": True}, {"cap_add": ["SYS_ADMIN"]}, {"cap_drop": None}, {"security_opt": None}, {"pid": "host"},
     {"network_mode": "host"}, {"ipc": "host"}, {"userns_mode": "host"}, {"uts": "host"}, {"cgroup": "host"},
     {"devices": [{"source": "/dev/sda"}]}, {"device_cgroup_rules": ["a *:* rwm"]}, {"user": "0:0"},
     {"group_add": ["docker"]}, {"command": ["sh"]}, {"entrypoint": ["sh"]}, {"image": "theirs"}, {"build": {}},
     {"post_start": [{"command": "id", "privileged": True}]}, {"provider": {"type": "theirs"}}, {"runtime": "theirs"},
     {"ports": [{"host_ip": "0.0.0.0", "target": 8265}]}, {"healthcheck": {"test": ["CMD", "id"]}},
     {"extra_hosts": ["head=192.0.2.1"]}, {"sysctls": {"net.ipv4.ip_forward": "1"}}, {"volumes_from": ["other"]}],
    ids=lambda setting: next(iter(setting)),
)  # fmt: skip
def test_rights_that_a_projects_file_may_not_give(setting: dict[str, Any]):
    """What a project's compose file changes of a service is refused by name, but for its resources."""
    ((key, value),) = setting.items()
    assert foreign_rights(settings(), settings(**setting)) == [f"head: {key} {value}"]


def test_rights_outside_of_our_services():
    """Further services, the variables of the token, volumes with a driver's options and other secrets are refused."""
    merged = settings(environment={"RAY_AUTH_MODE": "disabled", "MINE": "1"})
    merged["services"]["other"] = {"image": "theirs"}
    merged["volumes"] |= {"mine": {"name": "x_mine"}, "root": {"driver_opts": {"o": "bind", "device": "/"}}}
    merged["networks"] |= {"outer": {"external": True}}
    merged["secrets"] = {"raydebug_token": {"file": "/etc/shadow"}}
    assert foreign_rights(settings(), merged) == [
        "another service 'other'", "head: RAY_AUTH_MODE=disabled", "volumes root", "networks outer",
        "secrets raydebug_token",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("volume", "why"),
    [({"type": "bind", "source": "/", "target": "/host"}, "/ would give the containers this machine"),
     ({"type": "bind", "source": "/var/run/docker.sock", "target": "/s"}, "would give the containers this machine"),
     ({"type": "bind", "source": "/run", "target": "/r"}, "/run would give the containers this machine"),
     ({"type": "bind", "source": "/proc/1", "target": "/r"}, "/proc/1 would give the containers this machine"),
     ({"type": "bind", "source": "/x", "target": "/opt/raydebug/e"}, "have /opt/raydebug/e for themselves"),
     ({"type": "volume", "source": "v", "target": "/usr"}, "the containers have /usr for themselves"),
     ({"type": "image", "source": "theirs", "target": "/i"}, "a mount of the type image")],
)  # fmt: skip
def test_mounts_of_a_projects_file(volume: dict[str, str], why: str):
    """A project's file may mount what `--mount` may, and `up` names the folders; anything else is refused."""
    (said,) = foreign_rights(settings(), settings(volumes=[volume]))
    assert said.endswith(f"{why})")
    plain = {"type": "bind", "source": "/data", "target": "/data"}
    free = settings(volumes=[*settings()["services"]["head"]["volumes"], plain], mem_limit="2", shm_size="3")
    assert (foreign_rights(settings(), free), mounts_of(settings(), free)) == ([], ["/data"])


# Without an engine

DOCKER = """#!/bin/sh
echo "$@" >> $0.calls
if [ "$RAYDEBUG_ENV_FILE" != /dev/null ]; then echo "env file $RAYDEBUG_ENV_FILE not found"; exit 14; fi
echo 'unexpected character "{" in variable name'; exit ${CODE:-0}
"""


class Left:
    """An engine on which a cluster has left these."""

    def __init__(self, *left: str) -> None:
        self.left = left

    def leftovers(self, _: str) -> list[str]:
        return list(self.left)

    def volumes(self, _: str) -> list[str]:
        return []

    def remove_volumes(self, _: list[str]) -> None: ...


@pytest.mark.parametrize("code", ["0", "14"])
def test_down_without_the_file_of_keys(tmp_path, monkeypatch, code):
    """`down` needs no file with keys; what is left comes with what docker compose said."""
    program = tmp_path / "docker"
    program.write_text(DOCKER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CODE", code)
    monkeypatch.setattr(engine, "connect_to_change", lambda: None)
    monkeypatch.setattr(engine, "connect", lambda: Left(*["container x-head-1", "network x"] if code != "0" else []))
    made = Cluster(
        name="x", id="", kind="compose", folder=tmp_path / "x", temp_dir=tmp_path, python="", created=0.0,
        ports={"dashboard": 1, "gateway": 2}, cpus=0, gpus=0, debugger="off", flavour="cpu",
        settings={plan.ENV_FILE_VARIABLE: str(tmp_path / "gone.env")},
    )  # fmt: skip
    made.folder.mkdir()
    assert show_logs(made, None, follow=False) == int(code)
    left = take_down(made)
    calls = (tmp_path / "docker.calls").read_text()
    assert ("logs --no-color" in calls, calls.count(" down ")) == (True, 1 if code == "0" else 3)
    if code == "0":
        assert left == []
        return
    assert left[0] == "container x-head-1"
    assert left[1].startswith("network x (docker compose --project-name raydebug-x ")
    assert left[1].endswith(' said: unexpected character "{" in variable name)')


def has_compose() -> bool:
    """Return whether docker is there, with its plugin compose: Debian's package docker.io comes without."""
    try:
        done = subprocess.run(("docker", "compose", "version"), capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return b"Compose version" in done.stdout


@pytest.mark.skipif(not has_compose(), reason="docker compose prints what it merges; no engine is needed")
def test_project_file_is_named_and_refused(tmp_path, monkeypatch, capsys):
    """`up` names the project's compose file that it merges, and refuses what it asks for; not with --yes."""
    project = tmp_path / "project"
    project.mkdir()
    file = project / "docker-compose.override.yml"
    file.write_text("services:\n  head:\n    privileged: true\n    volumes: ['/data:/data']\n")
    token = tmp_path / "token"
    token.touch()
    files = [str(one) for one in files_for("core", {}, project)]
    cluster = Cluster("x", "id", "compose", tmp_path, tmp_path, "", {"dashboard": 1, "gateway": 2}, 0, 0, "breakpoint",
                      "core", 0.0, files=files, project=str(project), user="1000:1000")  # fmt: skip
    merged = settings_of(cluster)
    with pytest.raises(RaydebugError) as failure:
        _look_at_project_file(cluster, merged, yes=False)
    assert str(failure.value) == (
        f"error: {file} asks for more than `--mount` gives\n"
        "cause: head: privileged True\n"
        "fix: read that file; `raydebug up --yes` merges it all the same, COMPOSE_FILE names other files"
    )
    assert capsys.readouterr().err == f"merging {file} of this project; it mounts /data\n"
    _look_at_project_file(cluster, merged, yes=True)
    assert capsys.readouterr().err == f"merging {file} of this project; it mounts /data\n"
    _look_at_project_file(replace(cluster, files=files[:-1]), merged, yes=False)
    assert capsys.readouterr().err == ""
