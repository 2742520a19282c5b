"""`up --join FOLDER`: a cluster of `raydebug node` by what its nodes have written, without Ray and without Slurm."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from raydebug.cluster import node_cluster, rendezvous, slurm, state
from raydebug.cluster.kinds import kind_of
from raydebug.cluster.node_cluster import join_folder
from raydebug.cluster.rendezvous import Head
from raydebug.cluster.up import UpOptions
from raydebug.errors import RaydebugError
from raydebug.jobs.submit import node_variables

HEAD = Head(
    id="0123456789abcdef" * 2, host="n1", ip="10.77.0.11", gcs="10.77.0.11:6379", dial="10.77.0.11:5679",
    client_port=5678, dashboard_port=8265, temp_dir="/tmp/rd-abc_123", python="/opt/venv/bin/python", ray="2.60.0",
    flavour="core", debugger="post-mortem", gpus=8, nodes=2, life="  ",
)  # fmt: skip
OPTIONS = UpOptions(name="x")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a cluster with a token, before its head is up; the state folder is the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(node_cluster, "POLL_S", 0.01)
    rendezvous.make(tmp_path / "f")
    return tmp_path / "f"


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done with the way to the head, in the place of a tunnel: `close`, or the command that leads there."""
    done: list[str] = []

    def open_way(cluster: state.Cluster, _: Any) -> state.Cluster:
        done.append(cluster.remote.through)
        if "fails" in cluster.remote.through:
            raise RaydebugError("no way", cause="it fails", fix="none", code="joined.no-way")
        state.save_cluster(cluster)
        return cluster

    for module in ("node_cluster", "joined"):
        monkeypatch.setattr(f"raydebug.cluster.{module}.open_way", open_way)
        monkeypatch.setattr(f"raydebug.cluster.{module}.close_way", lambda _: done.append("close"))
    return done


def say(folder: Path, host: str, phase: str, reason: str | None = None, **more: Any) -> None:
    """Say how a node is: n1 is the head."""
    ip = {"n1": HEAD["ip"], "n2": "10.77.0.12"}.get(host, "?")
    rendezvous.say_node(folder, rendezvous.state_of(host, ip, phase, is_head=host == "n1", reason=reason, **more))


def come_up(folder: Path, **changes: Any) -> None:
    """Write what the nodes of a cluster that is up have written."""
    rendezvous.publish(folder, Head(**{**HEAD, **changes}))
    say(folder, "n1", rendezvous.UP)
    say(folder, "n2", rendezvous.UP)


@pytest.mark.parametrize(
    ("address", "is_folder"),
    [("http://h:8265", False), ("h:8265", False), ("h", False), ("./train", True), ("/a/b", True), ("~/a", True)],
)
def test_what_is_a_folder(address: str, is_folder: bool):
    """A path is no dashboard, whether it is there yet or not."""
    assert (node_cluster.folder_at(address) is not None) == is_folder


def test_join_and_leave(folder: Path, ways: list[str]):
    """The record has what the head has said and the token's own file; leaving touches neither folder nor nodes."""
    come_up(folder)
    cluster, nodes, was_joined = join_folder(OPTIONS, folder, "ssh n1", on_phase=lambda _: None)
    assert ([node["host"] for node in nodes], was_joined, ways) == (["n1", "n2"], False, ["ssh n1"])
    assert (cluster.kind, cluster.id, cluster.debugger, cluster.gpus) == ("joined", HEAD["id"], "post-mortem", 8)
    assert cluster.remote.far == {"gateway": 5678, "dashboard": 8265}
    assert (cluster.token, cluster.remote.join_url) == ((folder / "token").read_text(), str(folder))
    assert node_variables(cluster) == {"RAYDEBUG_CLUSTER_NAME": "x"}
    assert kind_of(cluster).is_alive()
    before = {path: path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert kind_of(cluster).take_down() == []
    assert state.read_record("x") is None
    assert {path: path.read_text() for path in folder.rglob("*") if path.is_file()} == before


def test_a_copy_of_the_folder(folder: Path, ways: list[str]):
    """Without states of nodes, Ray's table and the gateway say how it is; its logs are not here."""
    rendezvous.publish(folder, HEAD)
    cluster, nodes, _ = join_folder(OPTIONS, folder, "ssh n1", on_phase=lambda _: None)
    assert (nodes, kind_of(cluster).broken_nodes(), kind_of(cluster).why_gateway_down()) == ([], [], None)
    with pytest.raises(RaydebugError, match="are not here"):
        kind_of(cluster).show_logs(None, follow=False)


def test_what_it_waits_for(folder: Path, ways: list[str]):
    """It says what nodes are at, and returns once each has come up or failed."""
    said: list[str] = []

    def go_on(phase: str) -> None:
        said.append(phase)
        if len(said) == 1:
            say(folder, "n1", "starting Ray")
        elif len(said) == 2:
            come_up(folder)
            say(folder, "n2", "starting Ray")
        else:
            say(folder, "n2", rendezvous.FAILED, "no disk")

    _, nodes, _ = join_folder(OPTIONS, folder, "ssh n1", on_phase=go_on)
    assert said[:2] == [f"no head has written {folder}/cluster.json", "0 nodes are up; n1: starting Ray"]
    assert [node["phase"] for node in nodes] == ["up", "failed"]


@pytest.mark.parametrize(
    ("prepare", "cause"),
    [
        (lambda folder: say(folder, "n1", rendezvous.FAILED, "no disk"), "n1: no disk"),
        (lambda folder: say(folder, "n1", rendezvous.ENDED), "n1: ended"),
        (lambda folder: (folder / "cluster.json").write_text("{"), "Expecting property name"),
        (lambda folder: None, "no head has written"),
    ],
)
def test_no_head(folder: Path, ways: list[str], monkeypatch: pytest.MonkeyPatch, prepare: Any, cause: str):
    """A head that has failed or ended is named at once, one that does not come in time; there is no record then."""
    monkeypatch.setattr(node_cluster, "STARTS_S", 0.05)
    prepare(folder)
    with pytest.raises(RaydebugError, match="no cluster is up in") as error:
        join_folder(OPTIONS, folder, None, on_phase=lambda _: None)
    assert cause in error.value.cause
    assert (state.read_record("x"), ways) == (None, [])


def test_which_way(folder: Path, ways: list[str], monkeypatch: pytest.MonkeyPatch):
    """None on the head itself, srun into a job of Slurm, else what the user says, at a later join too."""
    monkeypatch.setattr(slurm, "left_s", lambda _: 60.0)

    def join(through: str | None = None, **changes: Any) -> str:
        come_up(folder, **changes)
        return join_folder(OPTIONS, folder, through, on_phase=lambda _: None)[0].remote.through

    with pytest.raises(RaydebugError, match="the head of this cluster is another machine, n1") as error:
        join()
    assert error.value.fix.endswith(f"raydebug up --join {folder} --through 'ssh n1'")
    assert join("ssh n1") == "ssh n1"
    assert join() == "ssh n1"
    assert ways == ["ssh n1", "ssh n1"], "it stays open"
    assert join("ssh -J gate n1") == "ssh -J gate n1"
    assert ways[2:] == ["close", "ssh -J gate n1"]
    assert join(ip="127.0.0.1") == ""
    srun = "srun --jobid=7 --overlap --nodes=1 --ntasks=1 --nodelist=n1 --quiet --unbuffered"
    assert join(life="7 0 ") == srun
    assert join("", life="7 0 ") == ""


@pytest.mark.parametrize("is_new", [True, False])
def test_a_way_that_fails(folder: Path, ways: list[str], is_new: bool):
    """A new join leaves no record; an earlier one has its way again."""
    come_up(folder)
    if not is_new:
        join_folder(OPTIONS, folder, "ssh n1", on_phase=lambda _: None)
    with pytest.raises(RaydebugError, match="no way"):
        join_folder(OPTIONS, folder, "ssh fails", on_phase=lambda _: None)
    record = state.read_record("x")
    assert (record.remote.through if record else None) == (None if is_new else "ssh n1")


def test_a_name_that_is_taken(folder: Path, ways: list[str], tmp_path: Path):
    """Another cluster under this name is refused."""
    come_up(folder)
    join_folder(OPTIONS, folder, "ssh n1", on_phase=lambda _: None)
    with pytest.raises(RaydebugError, match="cluster 'x' is another one"):
        join_folder(OPTIONS, tmp_path / "other", "ssh n1", on_phase=lambda _: None)


def test_nodes_as_they_say(folder: Path, ways: list[str]):
    """Until the head is up its nodes are as they say; then why the gateway is down."""
    come_up(folder)
    kind = kind_of(join_folder(OPTIONS, folder, "ssh n1", on_phase=lambda _: None)[0])
    assert (kind.broken_nodes(), kind.why_gateway_down()) == ([], None)
    say(folder, "n1", rendezvous.UP, gateway="it has ended five times")
    assert kind.why_gateway_down() == "it has ended five times"
    say(folder, "n1", rendezvous.FAILED, "Ray's head ended with exit code 1")
    rows = [(row["role"], row["ip"], row["state"], row["reason"]) for row in kind.nodes()]
    assert rows == [
        ("head", HEAD["ip"], "dead", "Ray's head ended with exit code 1"), ("worker", "10.77.0.12", "alive", "up"),
    ]  # fmt: skip
    assert kind.why_gateway_down() == "its head is not up: failed"
    rendezvous.forget_head(folder)
    assert not kind.is_alive()


@pytest.mark.parametrize(("ends_in_s", "left", "words"), [(600, 60, None), (100, 90, "in 90 s"), (100, 900, None)])
def test_before_the_time_limit(monkeypatch: pytest.MonkeyPatch, ends_in_s: float, left: float, words: str | None):
    """Five minutes before the job ends `paused` says so, unless Slurm, which is asked then only, gives it more time."""
    asked: list[str] = []
    monkeypatch.setattr(slurm, "left_s", lambda job: asked.append(job) or left)
    remote = state.Remote("", "", "", slurm_job="7", job_ends=time.time() + ends_in_s)
    soon = slurm.why_soon_over(remote)
    assert words is None if soon is None else words in soon and "job 7" in soon
    assert asked == ([] if ends_in_s == 600 else ["7"])


def test_what_comes_on_stdin(folder: Path):
    """`cat cluster.json token` makes a private folder on the own disk, with the token for its owner alone."""
    rendezvous.publish(folder, HEAD)
    text = (folder / "cluster.json").read_text() + (folder / "token").read_text() + "\n"
    made = rendezvous.take_copy(text)
    try:
        assert rendezvous.find_head(made) == HEAD
        rendezvous.check(made)
        assert (made / "token").read_text() == (folder / "token").read_text()
    finally:
        for path in sorted(made.rglob("*"), reverse=True):
            path.unlink()
        made.rmdir()


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "Expecting value"),
        ("ssh: cannot connect\n", "Expecting value"),
        (json.dumps(HEAD), "no token follows"),
        (json.dumps({**HEAD, "gcs": "x"}) + "t" * 64, "its gcs has the wrong form"),
        (json.dumps(HEAD) + "t" * 64 + "\nmore", "no token follows"),
    ],
)
def test_what_else_comes_on_stdin(text: str, cause: str):
    """Anything else is refused with what is wrong, and nothing is written."""
    with pytest.raises(RaydebugError, match="does not say where the head is") as error:
        rendezvous.take_copy(text)
    assert cause in error.value.cause
