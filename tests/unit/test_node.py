"""The files by which nodes find each other, and what a node decides before it starts anything."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from raydebug.cluster import node, rendezvous, state
from raydebug.cluster.environment import ray_command
from raydebug.cluster.interpreter import Environment
from raydebug.cluster.node import NodeOptions, Stop
from raydebug.errors import RaydebugError

HEAD = rendezvous.Head(
    id="0123456789abcdef" * 2, host="n1", ip="10.77.0.11", gcs="10.77.0.11:6379", dial="10.77.0.11:5679",
    client_port=5678, dashboard_port=8265, temp_dir="/tmp/rd-abc_123", python="/opt/venv/bin/python", ray="2.60.0",
    flavour="core", debugger="breakpoint", gpus=0, nodes=3, life="  ",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a cluster, with a token."""
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    rendezvous.make(tmp_path / "f")
    return tmp_path / "f"


def test_head_is_found_as_it_was_published(folder: Path):
    """What the head has said is read by the other nodes as it is, and is gone once the head has ended."""
    assert rendezvous.find_head(folder) is None
    rendezvous.publish(folder, HEAD)
    assert rendezvous.find_head(folder) == HEAD
    assert (folder / "cluster.json").stat().st_mode & 0o777 == 0o600
    rendezvous.forget_head(folder)
    assert rendezvous.find_head(folder) is None
    assert rendezvous.find_head(folder / "away") is None


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"gcs": "10.77.0.11"}, "its gcs has the wrong form"),
        ({"gcs": "10.77.0.11:6379 --head"}, "its gcs has the wrong form"),
        ({"dial": "n1;id:5679"}, "its dial has the wrong form"),
        ({"dial": "10.77.0.11:70000"}, "its dial has the wrong form"),
        ({"dial": "10.77.0.11:٥٦٧٩"}, "its dial has the wrong form"),
        ({"dial": f"10.77.0.11:{'0' * 5000}1"}, "its dial has the wrong form"),
        ({"ip": "$(id)"}, "its ip has the wrong form"),
        ({"host": "../n1"}, "its host has the wrong form"),
        ({"client_port": 0}, "its client_port has the wrong form"),
        ({"client_port": "5678"}, "'client_port' of it is not a whole number"),
        ({"temp_dir": "/root"}, "its temp_dir has the wrong form"),
        ({"temp_dir": "/tmp/rd-a/../.."}, "its temp_dir has the wrong form"),
        ({"python": "/bin/sh -c id"}, "its python has the wrong form"),
        ({"debugger": "all"}, "its debugger has the wrong form"),
        ({"id": "x"}, "its id has the wrong form"),
        ({"life": None}, "it lacks life"),
    ],
)
def test_broken_head(folder: Path, change: dict[str, Any], cause: str):
    """A file of the head in which anything is not what it should be is an error that says what."""
    (folder / "cluster.json").write_text(json.dumps({**HEAD, **change}))
    with pytest.raises(RaydebugError) as error:
        rendezvous.find_head(folder)
    assert error.value.cause == cause
    assert error.value.what == f"{folder}/cluster.json cannot be read"


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "[" * 100_000, "\xff" * 10, "x" * 100_000])
def test_file_that_is_none(folder: Path, text: str):
    """A half-written, an empty and a huge file is an error with a reason; of a node, the node is shown with it."""
    (folder / "nodes").mkdir(mode=0o700)
    for path in (folder / "cluster.json", folder / "nodes" / "n2.json"):
        path.write_bytes(text.encode("latin-1"))
    with pytest.raises(RaydebugError, match="cannot be read"):
        rendezvous.find_head(folder)
    (found,) = rendezvous.list_nodes(folder)
    assert (found["host"], found["phase"]) == ("n2", "unknown")
    assert str(folder / "nodes" / "n2.json") in str(found["reason"])


def test_fifo_holds_nobody(folder: Path):
    """A pipe in the place of a file does not block who reads it."""
    os.mkfifo(folder / "cluster.json")
    with pytest.raises(RaydebugError, match="cannot be read") as error:
        rendezvous.find_head(folder)
    assert error.value.cause == "it is not a regular file"


def test_nodes_are_listed_head_first(folder: Path):
    """Each node is listed as it has said last, the head first."""
    assert rendezvous.list_nodes(folder) == []
    for host, role, phase in (("a", "worker", "starting Ray"), ("b", "head", "up"), ("a", "worker", "up")):
        rendezvous.say_node(
            folder, {"host": host, "ip": "10.0.0.1", "role": role, "phase": phase, "reason": None, "gateway": None},
        )  # fmt: skip
    found = rendezvous.list_nodes(folder)
    assert [(one["host"], one["role"], one["phase"], one["reason"]) for one in found] == [
        ("b", "head", "up", None), ("a", "worker", "up", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        (lambda token: token.chmod(0o640), "its mode is 0640, not 0600"),
        (lambda token: token.write_text(""), "it is empty"),
        (lambda token: token.unlink(), "No such file or directory"),
        (lambda token: (token.rename(f"{token}2"), token.symlink_to("token2")), "it is a link to token2"),
        (lambda token: (token.unlink(), token.mkdir(mode=0o700)), "it is not a regular file"),
    ],
)
def test_token_that_others_could_have(folder: Path, spoil: Any, cause: str):
    """A node does not start with a token that is not its user's alone."""
    rendezvous.check(folder)
    spoil(folder / "token")
    with pytest.raises(RaydebugError) as error:
        rendezvous.check(folder)
    assert error.value.cause == cause


def test_folder_that_others_can_enter(folder: Path):
    """A folder that other users can enter is refused, not repaired: its token may be known already."""
    folder.chmod(0o750)
    with pytest.raises(RaydebugError, match="is not private to you"):
        rendezvous.make(folder)
    assert folder.stat().st_mode & 0o777 == 0o750


def test_folder_that_became_a_link(folder: Path, tmp_path: Path):
    """Nothing is written or removed through a link that has taken the folder's place."""
    theirs = tmp_path / "theirs"
    (theirs / "nodes").mkdir(parents=True, mode=0o700)
    (theirs / "nodes/a.json").touch()
    (theirs / "cluster.json").touch()
    folder.rename(tmp_path / "old")
    folder.symlink_to(theirs)
    said = rendezvous.state_of("b", "10.0.0.1", "up", is_head=False)
    for does in (rendezvous.forget_nodes, rendezvous.forget_head, lambda at: rendezvous.say_node(at, said)):
        with pytest.raises(RaydebugError, match="is not private to you"):
            does(folder)
    assert len([*theirs.rglob("*")]) == 3


def test_role():
    """Task 0 of Slurm is the head, if the options do not say it; without both it is not known."""
    for head, rank, expected in ((None, "0", True), (None, "2", False), (False, "0", False), (True, "1", True)):
        assert node.which_role(NodeOptions(Path(), head=head), {"SLURM_PROCID": rank}) is expected
    with pytest.raises(RaydebugError, match="nothing says whether this node is the head"):
        node.which_role(NodeOptions(Path()), {})
    for head in (None, True, False):
        with pytest.raises(RaydebugError, match="this host has several tasks of this step") as error:
            node.which_role(NodeOptions(Path(), head=head), {"SLURM_PROCID": "1", "SLURM_LOCALID": "1"})
        assert "--ntasks-per-node=1" in error.value.fix


@pytest.mark.parametrize("ports", ["20000", "20000-20010", "80-20000", "30000-20000", "20000-70000", "a-b", ""])
def test_block_of_ports_that_is_none(ports: str):
    """A block of ports is refused where it is none, too small, or not a user's."""
    assert node._block("20000-20999", 16) == (20000, 20500, 20999)
    assert node._block("20000-20063", 16) == (20000, 20032, 20063)
    assert node._block("20000-20299", 200) == (20000, 20084, 20299)
    assert node._block(None, 16) == (0, 0, 0)
    with pytest.raises(RaydebugError, match="is not a block of at least 64 ports"):
        node._block(ports, 16)
    with pytest.raises(RaydebugError, match="is not a block of at least 232 ports"):
        node._block("20000-20199", 200)


def a_node(folder: Path, **changes: Any) -> state.Cluster:
    ports = dict.fromkeys([*node.PURPOSES], 20001)
    values: dict[str, Any] = {"name": "default", "id": "i", "kind": "node", "folder": folder,
              "temp_dir": Path("/tmp/rd-x"), "python": "/venv/bin/python", "ports": ports, "cpus": 16, "gpus": 2,
              "debugger": "post-mortem", "flavour": "core", "created": 0.0}  # fmt: skip
    return state.Cluster(**{**values, **changes})


def test_environment_below_a_launcher(folder: Path):
    """Ray's processes have the head's addresses and the token's file, and nothing of one task of the launcher's."""
    base = {"SLURM_PROCID": "2", "SLURMD_NODENAME": "n3", "SBATCH_X": "1", "SRUN_CPUS_PER_TASK": "8",
            "PMI_RANK": "2", "PMIX_RANK": "2",
            "RAY_ADDRESS": "other:6379", "RAYDEBUG_GATEWAY": "other:1", "HOME": "/home/u",
            "CUDA_VISIBLE_DEVICES": "0,1", "PATH": "/bin"}  # fmt: skip
    found = node.environment_of(base, a_node(folder), "10.77.0.11:5679")
    assert not [name for name in found if name.startswith(("SLURM", "SBATCH", "SRUN", "PMI", "RAY_ADDRESS"))]
    assert found["RAYDEBUG_GATEWAY"] == "10.77.0.11:5679"
    assert found["RAYDEBUG_TOKEN_PATH"] == found["RAY_AUTH_TOKEN_PATH"] == f"{folder}/token"
    assert (found["RAY_AUTH_MODE"], found["RAY_DEBUG_POST_MORTEM"]) == ("token", "1")
    assert (found["CUDA_VISIBLE_DEVICES"], found["HOME"]) == ("0,1", "/home/u")
    assert found["RAY_health_check_failure_threshold"] == "7"
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in found
    theirs = node.environment_of({**base, "RAY_health_check_failure_threshold": "9"}, a_node(folder), "10.77.0.11:5679")
    assert theirs["RAY_health_check_failure_threshold"] == "9"


def test_command_of_a_node_that_joins(folder: Path):
    """A node that joins has its own address, and neither a dashboard nor a temp dir of its own."""
    argv = ray_command(a_node(folder), "10.77.0.12", "10.77.0.11:6379")
    assert "--address=10.77.0.11:6379" in argv
    assert "--node-ip-address=10.77.0.12" in argv
    assert not [word for word in argv if word.startswith(("--head", "--dashboard-host", "--temp-dir", "--port"))]
    head = ray_command(a_node(folder, ports={**dict.fromkeys(node.PURPOSES, 1), "worker_first": 20016,
                                             "worker_last": 20999}), "10.77.0.11")  # fmt: skip
    assert {"--head", "--dashboard-host=127.0.0.1", "--temp-dir=/tmp/rd-x/r"} <= set(head)
    assert {"--min-worker-port=20016", "--max-worker-port=20999"} <= set(head)


def test_own_address():
    """The own address is the one towards a peer, or that of a named interface; the error names the interfaces."""
    assert node.address_toward(["10.255.255.1"], "lo") == "127.0.0.1"
    with pytest.raises(RaydebugError, match="the address of this node is not known") as error:
        node.address_toward(["127.0.0.1", "no.such.host.invalid"], None)
    assert error.value.fix.startswith("name its interface: --interface ")
    with pytest.raises(RaydebugError) as error:
        node.address_toward([], "none9")
    assert error.value.cause == "this host has no interface none9 with an address of IPv4"


def test_waits_for_the_head_of_its_own_job(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A node takes neither the head of an earlier life of its job nor one out of reach; it waits for its own."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    stop = Stop()
    rendezvous.publish(folder, {**HEAD, "life": "7  "})
    life = node.life_of(os.environ)
    with pytest.raises(RaydebugError) as error:
        node.wait_for_head(folder, 0.3, stop, life)
    assert error.value.cause == (
        f"the head in {folder}/cluster.json is of another step, or of an earlier life of its job"
    )
    with socket.create_server(("127.0.0.1", 0)) as gcs:
        port = gcs.getsockname()[1]
        own = rendezvous.Head(**{**HEAD, "gcs": f"127.0.0.1:{port}", "life": "7  1"})
        rendezvous.publish(folder, {**own, "gcs": "127.0.0.1:1"})
        with pytest.raises(RaydebugError) as error:
            node.wait_for_head(folder, 0.3, stop, life)
        assert error.value.cause == "its 127.0.0.1:1 cannot be reached from here: Connection refused"
        assert "--ports" in error.value.fix
        (folder / "cluster.json").write_text("{")  # it is read again until the patience is over
        late = threading.Timer(0.3, rendezvous.publish, (folder, own))
        late.start()
        assert node.wait_for_head(folder, 20.0, stop, life) == own
        assert node.wait_for_head(folder, 20.0, stop, None) == own
        rendezvous.publish(folder, {**own, "life": "7 3 "})  # each was told what it is, in a step of its own
        assert node.wait_for_head(folder, 20.0, stop, None)["life"] == "7 3 "
    stop.asked = True
    with pytest.raises(RaydebugError):
        node.wait_for_head(folder, 20.0, stop, life)


def test_failure_before_anything_is_started(folder: Path):
    """A node that gives up before it has a temp dir says why; another node's end does not end the cluster."""
    (folder / "nodes").mkdir(mode=0o700)
    (folder / "nodes" / "n9.json").write_text("{}")
    argv = [sys.executable, "-m", "raydebug", "node", "--folder", str(folder), "--join", "--patience", "0"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert done.stderr.startswith("error: this node has ended\ncause: the head has not come up within 0 s: no head has")
    (mine,) = [one for one in rendezvous.list_nodes(folder) if one["host"] != "n9"]
    assert (mine["phase"], mine["ip"]) == ("failed", "?")
    rendezvous.forget_nodes(folder)
    assert rendezvous.list_nodes(folder) == []


def test_remains_of_a_node_that_was_killed(tmp_path: Path):
    """A node removes the temp dirs of killed nodes, and no other: one in use, a link, one without a lock."""
    for name in ("rd-left", "rd-held", "rd-local", "elsewhere"):
        (tmp_path / name).mkdir(mode=0o700)
    for name in ("rd-left", "elsewhere"):
        (tmp_path / name / node.LOCK).touch()
    (tmp_path / "rd-link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "rd-local" / "other")
    (tmp_path / "rd-local" / node.LOCK).symlink_to(tmp_path / "rd-local" / "other")
    node.hold(tmp_path / "rd-held")
    held = {name: node.is_held(tmp_path / name) for name in ("rd-held", "rd-left", "rd-local", "rd-none")}
    assert held == {"rd-held": True, "rd-left": False, "rd-local": None, "rd-none": None}
    node.clear_remains(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"rd-held", "rd-local", "rd-link", "elsewhere"}


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a folder of another user: needs root")
def test_remains_of_another_user(tmp_path: Path):
    """A lock in a folder of another user is not opened, whatever it is."""
    (tmp_path / "rd-theirs").mkdir()
    os.mkfifo(tmp_path / "rd-theirs" / node.LOCK)
    os.chown(tmp_path / "rd-theirs", 65534, 65534)
    assert node.is_held(tmp_path / "rd-theirs") is None
    node.clear_remains(tmp_path)
    assert (tmp_path / "rd-theirs").is_dir()


def test_a_second_node_on_the_head_s_host(folder: Path):
    """A node that joins on the head's host is refused, and touches neither the head's temp dir nor its state."""
    temp_dir = Path(tempfile.mkdtemp(prefix="rd-", dir="/tmp"))
    try:
        node.hold(temp_dir)
        rendezvous.publish(folder, {**HEAD, "temp_dir": str(temp_dir)})
        argv = [sys.executable, "-m", "raydebug", "node", "--folder", str(folder), "--join"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0
        assert (
            f"cause: this host has a node of this cluster already: the head holds {temp_dir}/node.lock" in done.stderr
        )
        assert rendezvous.list_nodes(folder) == []
        assert node.is_held(temp_dir)
    finally:
        shutil.rmtree(temp_dir)


def test_end_of_the_head_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A node ends when the head's file is gone or another cluster's, but not because it cannot be read."""
    monkeypatch.setattr(node, "REAP_PERIOD_S", 0.0)

    def is_over() -> bool:
        kept = node.NodeKeeper("n2", a_node(folder, id=HEAD["id"]), "10.77.0.12", HEAD, Stop(), is_head=False)
        over = []
        for _ in range(2):
            kept._keep_others()
            over.append(kept._is_over())
        assert not over[0], "it may be missing for a moment"
        return over[1]

    rendezvous.publish(folder, HEAD)
    assert not is_over()
    (folder / "cluster.json").write_text("{")
    assert not is_over()
    rendezvous.publish(folder, {**HEAD, "id": "f" * 32})
    assert is_over()
    rendezvous.forget_head(folder)
    assert is_over()


@pytest.mark.parametrize(
    ("life", "ours", "answers", "refused"),
    [
        ("7 0 ", "8 0 ", True, True),
        ("7 0 ", "7 1 ", True, True),  # another step
        ("  ", "  ", True, True),  # no launcher that counts
        ("7 0 ", "7 0 1", True, False),  # queued again
        ("7 0 ", "8 0 ", False, False),
    ],
)
def test_folder_of_a_head_that_answers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, life: str, ours: str, answers: bool, refused: bool
):
    """A second head is refused while another one answers, and touches nothing; not in a job that is queued again."""
    for name, value in zip(("JOB_ID", "STEP_ID", "RESTART_COUNT"), ours.split(" "), strict=True):
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setattr(Stop, "take_signals", lambda _: None)
    monkeypatch.setattr(node, "adopt_orphans", lambda: None)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("it starts"))
    with socket.create_server(("127.0.0.1", 0)) as gcs:
        head = rendezvous.Head(**{**HEAD, "gcs": f"127.0.0.1:{gcs.getsockname()[1]}", "life": life})
        if not answers:
            gcs.close()
        rendezvous.publish(folder, head)
        if refused:
            with pytest.raises(RaydebugError, match="has a cluster already"):
                node.run(NodeOptions(folder, head=True))
            assert rendezvous.find_head(folder) == head
        else:
            with pytest.raises(pytest.fail.Exception, match="it starts"):
                node.run(NodeOptions(folder, head=True))


FAILS = """
import sys
from pathlib import Path
from raydebug.cluster import node
def no_space(*_, **__): raise OSError(122, "Disk quota exceeded")
node._plan = no_space
print(node.run(node.NodeOptions(Path(sys.argv[1]), head=True)))
"""


def test_error_that_nobody_expects(folder: Path):
    """A node that fails with an error of Python's says so, in the folder too; only one that is killed was killed."""
    argv = [sys.executable, "-c", FAILS, str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.endswith("\n('OSError: [Errno 122] Disk quota exceeded', True)\n"), done.stderr
    (mine,) = rendezvous.list_nodes(folder)
    assert (mine["phase"], mine["reason"]) == ("failed", "OSError: [Errno 122] Disk quota exceeded")


def test_python_whose_path_nobody_could_read(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A head whose Python no other node would accept says so before it starts anything."""
    monkeypatch.setattr(node, "find_interpreter", lambda _: "/home/me/my env/bin/python")
    monkeypatch.setattr(node, "probe_environment", lambda _: Environment("core", "2.60.0"))
    with pytest.raises(RaydebugError, match="this node cannot be a head") as raised:
        node._plan(NodeOptions(folder, interface="lo"), folder, Path("/tmp/rd-x"), "n1", None, Stop())
    assert raised.value.cause == "its python has the wrong form; its Python is /home/me/my env/bin/python"
