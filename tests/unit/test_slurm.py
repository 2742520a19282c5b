"""The script for sbatch, what Slurm says, and a whole life of a cluster's job with programs in the place of Slurm's."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raydebug.cli.up_elsewhere import launch_cluster
from raydebug.cluster import remote_kinds, rendezvous, slurm, state
from raydebug.cluster.kinds import kind_of
from raydebug.cluster.tunnel import command_of
from raydebug.cluster.up import UpOptions
from raydebug.errors import RaydebugError

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --job-name=raydebug-mine
#SBATCH --chdir=/shared/f
#SBATCH --output=/shared/f/slurm.log
#SBATCH --open-mode=append
#SBATCH --signal=TERM@30
#SBATCH --gres=gpu:8
#SBATCH --exclusive
#SBATCH --no-kill --no-requeue
[ -z "$SLURM_CPUS_PER_TASK" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
exec srun --no-kill --kill-on-bad-exit=1 --wait=0 --cpu-bind=none --unbuffered --label \
/venv/bin/python -P -m raydebug node --folder /shared/f --debugger post-mortem --gpus 8 --interface ib0
"""
CONTAINED = """\
#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --job-name=raydebug-default
#SBATCH --chdir='/my files'
#SBATCH --output='/my files/slurm.log'
#SBATCH --open-mode=append
#SBATCH --signal=TERM@30
#SBATCH --cpus-per-task=4
#SBATCH --no-kill --no-requeue
[ -z "$SLURM_CPUS_PER_TASK" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
exec srun --no-kill --kill-on-bad-exit=1 --wait=0 --cpu-bind=none --unbuffered --label \
--container-image=verl.sqsh '--container-mounts=/a b:/c' \
python3 -P -m raydebug node --folder '/my files' --debugger breakpoint --cpus 4
"""


@pytest.mark.parametrize("option", ["container", "node_options"])
def test_words_without_an_end(option: str):
    """Words with a quotation mark that is not closed are refused, before anything is submitted."""
    with pytest.raises(RaydebugError, match="cannot be read"):
        slurm.script_of(UpOptions(nodes=1, **{option: "'a"}), Path("/f"))


def test_script():
    """The script for sbatch is this, word for word."""
    options = UpOptions(
        name="mine", gpus=8, debugger="post-mortem", python="/venv/bin/python", nodes=3, node_options="--interface ib0"
    )
    assert slurm.script_of(options, Path("/shared/f")) == SCRIPT
    prefix = "--container-image=verl.sqsh '--container-mounts=/a b:/c'"
    options = UpOptions(cpus=4, nodes=1, container=prefix)
    assert slurm.script_of(options, Path("/my files")) == CONTAINED


@pytest.mark.parametrize("words", ["-c 4", "--cpus-per-task=4", "--cpus-per-gpu=4", "-s", "--exclusive=user"])
def test_cpus_that_the_user_named(words: str):
    """Whole nodes are asked for only where nothing says which CPUs of a node the job gets."""
    for sbatch, whole in ((words.split(), 0), (["-C", "a100", "--partition=p"], 1)):
        script = slurm.script_of(UpOptions(nodes=1, after=tuple(sbatch)), Path("/f"))
        assert script.count("#SBATCH --exclusive\n") == whole


@pytest.mark.parametrize(
    "words",
    ["job.sh", "-W", "--wait", "--array=1-3", "--array 1-3", "-a1-3", "--test-only", "-M east", "--clusters=east"],
)
def test_options_of_sbatch_that_are_refused(words: str):
    """An option after which no single job of this cluster is submitted is refused, also by --dry-run."""
    with pytest.raises(RaydebugError, match="is not an option that this job can have"):
        slurm.script_of(UpOptions(nodes=1, after=tuple(words.split())), Path("/f"))
    slurm.script_of(UpOptions(nodes=1, after=("--partition", "gpu", "--wait-all-nodes=1")), Path("/f"))
    with pytest.raises(RaydebugError, match="there is no script without --nodes"):
        slurm.script_of(UpOptions(folder=Path("/f")), Path("/f"))


FAKE = """#!{python}
import json, os, sys
from pathlib import Path
here = Path({folder!r})
with (here / "calls").open("a") as calls: calls.write(json.dumps(sys.argv) + "\\n")
name = Path(sys.argv[0]).name
if name == "sbatch": print("sbatch: a warning"); print("17;cluster")
elif name == "squeue" and "SQUEUE_PARTITION" in os.environ: pass
elif name == "scancel" and "SCANCEL_PARTITION" in os.environ: pass
elif name == "scancel": (here / "state").write_text("CANCELLED|INVALID|None")
elif (here / "state").exists(): print((here / "state").read_text())
else: sys.exit("slurm_load_jobs error: Invalid job id specified")
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with programs that are called like Slurm's; `state` is what squeue says, `calls` has all calls."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    (tmp_path / "bin").mkdir()
    for name in ("sbatch", "squeue", "scancel", "srun", "sinfo"):
        program = tmp_path / "bin" / name
        program.write_text(FAKE.format(python=sys.executable, folder=str(tmp_path)))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "state").write_text("PENDING|1:00:00|Resources")
    return tmp_path


def calls_of(site: Path, name: str) -> list[list[str]]:
    calls = [json.loads(line) for line in (site / "calls").read_text().splitlines()]
    return [call[1:] for call in calls if Path(call[0]).name == name]


def test_interrupt_while_it_is_pending(site: Path, monkeypatch: pytest.MonkeyPatch):
    """A pending job is waited for with Slurm's reason; Ctrl-C cancels it, and nothing of it is left."""
    said: list[str] = []

    def on_phase(phase: str) -> None:
        said.append(phase)
        if "pending" in phase:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        slurm.bring_up(UpOptions(nodes=2, after=("--partition=gpu",)), on_phase=on_phase)
    assert said == ["job 17 is pending: Resources", "cancelling its job"]
    ((parsable, partition, script),) = calls_of(site, "sbatch")
    assert (parsable, partition, Path(script).name) == ("--parsable", "--partition=gpu", "job.sh")
    assert calls_of(site, "scancel") == [["17"]]
    assert state.read_record("default") is None
    assert not Path(script).parent.exists()


def test_job_that_cannot_be_recorded(site: Path, monkeypatch: pytest.MonkeyPatch):
    """A job that was submitted and cannot be recorded is cancelled."""

    def no_space(_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(state, "save_cluster", no_space)
    with pytest.raises(OSError, match="no space"):
        slurm.bring_up(UpOptions(nodes=2), on_phase=lambda _: None)
    assert calls_of(site, "scancel") == [["17"]]
    assert not list((site / "home/raydebug/clusters/default").glob("slurm-*"))


def test_job_that_ends_while_it_starts(site: Path):
    """A job that has ended before its head was up is an error with what the nodes have said."""
    (site / "state").write_text("FAILED|INVALID|NonZeroExitCode")
    folder = site / "f"

    with pytest.raises(RaydebugError) as error:
        slurm.bring_up(
            UpOptions(nodes=1, folder=folder),
            on_phase=lambda _: (rendezvous.make(folder), say(folder, "n1", "failed", reason="Ray ended: no space")),
        )  # fmt: skip
    assert error.value.code == "cluster.not-up"
    assert error.value.cause.startswith("job 17 is failed: NonZeroExitCode; ")
    assert not (folder / "token").exists()


def test_logs_of_a_start_that_fails(site: Path, monkeypatch: pytest.MonkeyPatch):
    """The logs of nodes that do not come up outlive their folder; a folder that nobody has written to is named."""
    monkeypatch.setattr(slurm, "STARTS_S", 0.5)
    (site / "state").write_text("RUNNING|1:00:00|None")
    seen: list[Path] = []

    def on_phase(phase: str) -> None:
        (folder,) = (site / "home/raydebug/clusters/default").glob("slurm-*")
        if not seen:
            say(folder, "n1", "failed", role="head")
            (folder / "nodes" / "n1.log").write_text("no space")
            (folder / "slurm.log").write_text("0: n1: failed")
        seen.append(folder)

    with pytest.raises(RaydebugError) as error:
        slurm.bring_up(UpOptions(nodes=2), on_phase=on_phase)
    kept = state.kept_logs("default")
    assert f"read the logs in {kept}; " in error.value.fix
    assert {path.name: path.read_text() for path in kept.iterdir()} == {
        "n1.log": "no space", "slurm.log": "0: n1: failed"
    }  # fmt: skip
    assert not seen[0].exists()

    (site / "state").write_text("RUNNING|1:00:00|None")
    with pytest.raises(RaydebugError) as error:
        slurm.bring_up(UpOptions(nodes=2), on_phase=lambda _: None)
    assert error.value.cause.startswith("no node has written to ")
    assert error.value.cause.endswith("; there is no log of the job")
    assert error.value.fix.startswith("nodes and this machine have to share that folder: --folder DIR; ")


@pytest.fixture
def way(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done with the way to the head, in the place of a tunnel: `close`, or the command that leads there."""
    done: list[str] = []

    def open_way(cluster: state.Cluster, _: object) -> state.Cluster:
        done.append(cluster.there.through)
        state.save_cluster(cluster)
        return cluster

    monkeypatch.setattr(slurm, "close_way", lambda _: done.append("close"))
    monkeypatch.setattr(slurm, "open_way", open_way)
    return done


def test_up_again(site: Path, way: list[str]):
    """A later `up` waits for no late node, closes the way to an earlier head, and leaves a job whose way fails."""
    (site / "state").write_text("RUNNING|1:00:00|None")
    folder = site / "f"

    def publish(_: str, **changes: Any) -> None:
        for host in ("n1", "n2"):
            say(folder, host, "up")
        rendezvous.publish(folder, rendezvous.Head(**{**HEAD, "python": "/in/image/python", **changes}))

    asked = UpOptions(nodes=2, folder=folder, container="apptainer exec IMG")
    cluster, _, started = slurm.bring_up(asked, on_phase=publish)
    assert (started, cluster.python) == (True, "/in/image/python")
    assert "apptainer" not in cluster.there.through, "the way does not lead into the container"
    far = command_of(cluster.there.through, cluster.python)
    assert far[-6:] == ["/in/image/python", "-P", "-m", "raydebug.cluster.reach", "there", "FAR_PORT"]
    shown = subprocess.run([*far[far.index("sh"):-5], "-c", "import sys; print(sys.executable)"],
                           capture_output=True, text=True, check=True)  # fmt: skip
    assert shown.stdout.strip() == sys.executable
    way.clear()
    say(folder, "n2", "starting Ray")
    assert slurm.bring_up(UpOptions(), on_phase=lambda _: None)[2] is False
    assert way == [cluster.there.through]
    way.clear()
    publish("", dashboard_port=8266)
    slurm.bring_up(UpOptions(), on_phase=lambda _: None)
    assert way == ["close", cluster.there.through]
    assert not calls_of(site, "scancel")


def no_way(*_: object) -> None:
    raise RaydebugError("no way", cause="", fix="", code="joined.no-way")


def test_way_that_fails(site: Path, monkeypatch: pytest.MonkeyPatch):
    """A job that is up is left where only the way to it cannot be opened; none is submitted for a taken port."""
    (site / "state").write_text("RUNNING|1:00:00|None")

    def publish(_: str) -> None:
        (folder,) = (site / "home/raydebug/clusters/default").glob("slurm-*")
        say(folder, "n1", "up", role="head")
        rendezvous.publish(folder, rendezvous.Head(**{**HEAD, "nodes": 1}))

    monkeypatch.setattr(slurm, "open_way", no_way)
    with socket.create_server(("127.0.0.1", 0)) as server:
        with pytest.raises(RaydebugError) as error:
            slurm.bring_up(UpOptions(gateway_port=server.getsockname()[1], nodes=1), on_phase=lambda _: None)
        assert error.value.code == "port.taken"
    assert not (site / "calls").exists()
    with pytest.raises(RaydebugError, match="no way"):
        slurm.bring_up(UpOptions(nodes=1), on_phase=publish)
    assert not calls_of(site, "scancel")
    assert state.read_record("default") is not None


def say(folder: Path, host: str, phase: str, *, role: str = "worker", reason: str | None = None) -> None:
    ip = f"10.77.0.1{host[1:]}"
    rendezvous.say_node(folder, {"host": host, "ip": ip, "role": role, "phase": phase, "reason": reason,
                                 "gateway": None})  # fmt: skip


HEAD: dict[str, Any] = {
    "id": "0" * 32, "host": "n1", "ip": "10.77.0.11", "gcs": "10.77.0.11:6379", "dial": "10.77.0.11:5679",
    "client_port": 5678, "dashboard_port": 8265, "temp_dir": "/tmp/rd-a", "python": "/venv/bin/python", "ray": "2.60.0",
    "flavour": "core", "debugger": "breakpoint", "gpus": 0, "nodes": 2, "life": "17 0 ",
}  # fmt: skip


def test_token_is_nowhere_but_in_its_file(site: Path, monkeypatch: pytest.MonkeyPatch):
    """The token is in no call, no script, and no file of the folder but its own; all of these are the user's alone."""
    monkeypatch.setattr(slurm, "STARTS_S", 0.0)
    (site / "state").write_text("RUNNING|1:00:00|None")
    seen: dict[str, bytes] = {}

    def on_phase(_: str) -> None:
        (folder,) = (site / "home/raydebug/clusters/default").glob("slurm-*")
        seen.update({path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()})
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "token").stat().st_mode & 0o777 == 0o600

    with pytest.raises(RaydebugError, match="did not come up"):
        slurm.bring_up(UpOptions(nodes=2), on_phase=on_phase)
    token = seen.pop("token")
    assert len(token) == 64
    assert set(seen) == {".raydebug", "job.sh"}
    assert not [name for name, text in seen.items() if token in text]
    assert token.decode() not in (site / "calls").read_text()


def test_nodes_as_slurm_and_the_nodes_say(site: Path, monkeypatch: pytest.MonkeyPatch):
    """`ps` names why a job is pending, what each node that is not up waits for, and Slurm's state of a dead one."""
    monkeypatch.setattr(slurm, "WARN_S", 300.0)
    folder = site / "f"
    rendezvous.make(folder)
    cluster = slurm._record(UpOptions(), folder, {"job": "17", "container": ""})
    monkeypatch.setattr(remote_kinds, "ASK_SLURM_S", 0.0)
    kind = kind_of(cluster)
    assert [(row["state"], row["reason"]) for row in kind.nodes()] == [("pending", "job 17 is pending: Resources")]
    assert kind.why_gateway_down() == "job 17 is pending: Resources"
    assert not kind.is_alive()

    (site / "state").write_text("RUNNING|4:10|None")
    say(folder, "n2", "starting Ray")
    assert [(row["role"], row["state"], row["reason"]) for row in kind.nodes()] == [
        ("worker", "starting", "starting Ray")
    ]
    say(folder, "n1", "failed", role="head", reason="Ray ended while it started")
    assert [(row["role"], row["state"], row["reason"]) for row in kind.nodes()] == [
        ("head", "dead", "Ray ended while it started"), ("worker", "starting", "starting Ray"),
    ]  # fmt: skip
    assert kind.why_gateway_down() == "its head is not up: failed"

    cluster = slurm._with_head(cluster, rendezvous.Head(**HEAD))
    assert cluster.there.through == (
        "srun --jobid=17 --overlap --nodes=1 --ntasks=1 --nodelist=n1 --quiet --unbuffered"
    )
    soon = slurm.why_soon_over(cluster)
    assert soon is not None
    assert soon.startswith("Slurm ends this cluster, job 17, in 250 s, and all pauses with it")
    asked = len(calls_of(site, "squeue"))
    later = replace(cluster.there, launched={**cluster.there.launched, "ends": str(time.time() + 3600)})
    assert slurm.why_soon_over(replace(cluster, remote=later)) is None
    assert len(calls_of(site, "squeue")) == asked, "Slurm is asked near the end only"

    (folder / "gateway.log").write_text("audit\xff")
    assert (kind.log_of("gateway"), kind.log_of("nodes")) == ("audit\xff", "")
    (site / "state").unlink()
    assert kind.why_gateway_down() == "job 17 is gone"
    say(folder, "n2", "up")
    assert [(row["ip"], row["state"], row["reason"]) for row in kind_of(cluster).nodes()] == [
        ("10.77.0.11", "dead", "Ray ended while it started"), ("10.77.0.12", "dead", "job 17 is gone"),
    ]  # fmt: skip
    assert kind_of(cluster).take_down() == []
    assert state.read_record("default") is None


def test_own_allocation_runs_on(site: Path, monkeypatch: pytest.MonkeyPatch):
    """`down` of a cluster in an allocation of the user's own forgets it, and cancels nothing."""
    folder = site / "f"
    rendezvous.make(folder)
    rendezvous.publish(folder, rendezvous.Head(**HEAD))
    (site / "state").write_text("COMPLETED|0:00|None")
    monkeypatch.setattr(slurm, "STARTS_S", 0.0)
    with pytest.raises(RaydebugError) as error:
        slurm._adopt(UpOptions(folder=folder), lambda _: None)
    assert error.value.cause == "its cluster.json is of job 17, which is completed"
    (site / "state").write_text("RUNNING|1:00:00|None")
    monkeypatch.setattr(slurm, "open_way", no_way)
    with pytest.raises(RaydebugError, match="no way"):
        slurm.bring_up(UpOptions(folder=folder), on_phase=lambda _: None)
    assert state.read_record("default") is None
    assert calls_of(site, "scancel") == []
    rendezvous.publish(folder, rendezvous.Head(**HEAD))
    cluster = slurm._adopt(UpOptions(folder=folder), lambda _: None)
    assert cluster.there.launched["job"] == "17"
    assert slurm.take_down(cluster) == []
    assert (folder / "token").is_file()
    assert not (site / "calls").exists() or calls_of(site, "scancel") == []
    rendezvous.publish(folder, rendezvous.Head(**{**HEAD, "life": "  "}))
    with pytest.raises(RaydebugError, match="has no cluster of Slurm"):
        slurm._adopt(UpOptions(folder=folder), lambda _: None)


@pytest.mark.parametrize("name", ["job.sh", "token", "cluster.json", "nodes", "train.py"])
def test_folder_of_the_users(site: Path, name: str):
    """Nothing is written or removed in a folder with files of the user's, and nothing is submitted."""
    folder = site / "project"
    folder.mkdir(mode=0o700)
    (folder / name).mkdir() if name == "nodes" else (folder / name).write_text("mine")
    with pytest.raises(RaydebugError, match="is not a folder of raydebug's"):
        slurm._submit(UpOptions(nodes=2, folder=folder))
    assert [path.name for path in folder.iterdir()] == [name]
    assert name == "nodes" or (folder / name).read_text() == "mine"
    assert not (site / "calls").exists()


def test_folder_of_an_earlier_cluster(site: Path):
    """A folder that raydebug has made is used again, after `down` and after a refusal; the script follows no link."""
    folder, other = site / "f", site / "other"
    other.write_text("mine")
    for _ in range(2):
        cluster = slurm._submit(UpOptions(nodes=2, folder=folder))
        assert (folder / "job.sh").stat().st_mode & 0o777 == 0o600
        (folder / "job.sh").unlink()
        (folder / "job.sh").symlink_to(other)
        assert slurm.take_down(cluster) == []
        assert not (folder / "token").exists()
    assert other.read_text() == "mine"


@pytest.mark.parametrize("state_of_job", ["RUNNING|1:00:00|None", ""])
def test_down_cancels(site: Path, monkeypatch: pytest.MonkeyPatch, state_of_job: str):
    """`down` cancels the job whatever the user's filters hide of it, and where Slurm lists none."""
    cluster = slurm._submit(UpOptions(nodes=2))
    (site / "state").write_text(state_of_job)
    for name in ("SQUEUE_PARTITION", "SCANCEL_PARTITION"):
        monkeypatch.setenv(name, "other")
    assert slurm.ask(cluster).state == (slurm.RUNNING if state_of_job else slurm.GONE)
    assert slurm.take_down(cluster) == []
    assert calls_of(site, "scancel") == [["17"]]
    assert slurm.ask(cluster).state == "CANCELLED"


def test_down_without_room_for_audit_lines(site: Path, capsys: pytest.CaptureFixture[str]):
    """Where the audit lines cannot be kept, `down` says so and ends the cluster."""
    cluster = slurm._submit(UpOptions(nodes=2))
    (Path(cluster.there.folder) / "gateway.log").write_text("2026-11-22T18:00:00.123Z INFO audit: detach pause=1\n")
    (site / "home/raydebug/audit").touch()
    assert kind_of(cluster).take_down() == []
    assert "note: 1 audit lines are lost: " in capsys.readouterr().err
    assert calls_of(site, "scancel") == [["17"]]


def test_folder_of_a_cluster_that_runs(site: Path):
    """A folder whose head's job runs is refused, and its files stay; it is taken once that job has ended."""
    folder = site / "f"
    rendezvous.make(folder)
    rendezvous.publish(folder, rendezvous.Head(**HEAD))
    (site / "state").write_text("RUNNING|1:00:00|None")
    with pytest.raises(RaydebugError) as raised:
        slurm._submit(UpOptions(nodes=2, folder=folder))
    assert (raised.value.cause, raised.value.exit_code) == ("its job 17 is running", 3)
    assert rendezvous.find_head(folder) is not None
    assert not calls_of(site, "sbatch")
    (site / "state").write_text("COMPLETED|0:00|None")
    slurm._submit(UpOptions(nodes=2, folder=folder))
    assert rendezvous.find_head(folder) is None


def test_script_as_json(site: Path, capsys: pytest.CaptureFixture[str]):
    """`--dry-run --json` prints one document with the script."""
    launch_cluster("slurm", UpOptions(nodes=2), dry_run=True, as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["version"], shown["script"].splitlines()[0]) == (1, "#!/bin/bash")
    assert not (site / "calls").exists()
