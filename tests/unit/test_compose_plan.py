"""What a user gives a cluster of containers: mounts, keys, compose files; what cannot be is refused in three lines."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from raydebug.cluster.compose import plan, preflight
from raydebug.cluster.compose.plan import Mount, as_compose, check_keys, files_for, hub_mount, parse_mounts
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
        ("/tmp", "it is no SOURCE:TARGET and no SOURCE:TARGET:ro"),
        ("/tmp:", "it is no SOURCE:TARGET and no SOURCE:TARGET:ro"),
        ("/tmp:/data:ro:z", "it is no SOURCE:TARGET and no SOURCE:TARGET:ro"),
        ("/tmp:/data:rx", "its mode is 'rx'"),
        ("data:/data", "'data' is no absolute path"),
        ("/tmp/$HOME:/data", "'/tmp/$HOME' is no absolute path"),
        ("/tmp/a b:/data", "'/tmp/a b' is no absolute path"),
        ("/tmp/../etc:/data", "'/tmp/../etc' is no absolute path"),
        ("/tmp:/da\nta", "is no absolute path"),
        ("/tmp:/workspace", "the containers have /workspace for themselves"),
        ("/tmp:/run/secrets/raydebug_token", "the containers have /run/secrets/raydebug_token for themselves"),
        ("/:/data", "/ would give the containers this machine"),
        ("/proc:/data", "/proc would give the containers this machine"),
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


def test_dockers_socket_is_no_mount(tmp_path):
    """No way leads to Docker's socket, by a link neither."""
    (tmp_path / "link").symlink_to("/var/run/docker.sock")
    assert "would give the containers this machine" in refusal([f"{tmp_path}/link:/data"], "").cause


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
    assert failure.value.cause == "line 2: it is no KEY=VALUE"
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
    preflight.refuse_large_memory({"services": {"head": {"mem_limit": str(8 * GIB)}, "x": {}}}, 8 * GIB)
    with pytest.raises(RaydebugError) as failure:
        preflight.refuse_large_memory({"services": {"worker": {"mem_limit": str(64 * GIB)}}}, 16 * GIB)
    assert str(failure.value) == (
        "error: WORKER_MEMORY is larger than this machine's memory\n"
        "cause: a worker may take 68719476736 bytes, and the machine has 17179869184\n"
        "fix: unset WORKER_MEMORY (environment, .env): `raydebug up` chooses one that fits; `up --dry-run` shows it"
    )
