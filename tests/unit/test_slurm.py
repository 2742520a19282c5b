"""The script for sbatch, what Slurm says, and a whole life of a cluster's job with programs in the place of Slurm's."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raydebug.cluster import rendezvous, slurm, state
from raydebug.cluster.kinds import kind_of
from raydebug.cluster.slurm import SlurmOptions
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
/venv/bin/python -P -m raydebug node --folder /shared/f --nodes 3 --debugger post-mortem --gpus 8 --interface ib0
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
python3 -P -m raydebug node --folder '/my files' --nodes 1 --debugger breakpoint --cpus 4
"""


def test_script():
    """The script for sbatch is this, word for word."""
    options = UpOptions(name="mine", gpus=8, debugger="post-mortem", python="/venv/bin/python")
    assert slurm.script_of(options, SlurmOptions(3, node="--interface ib0"), Path("/shared/f")) == SCRIPT
    prefix = "--container-image=verl.sqsh '--container-mounts=/a b:/c'"
    asked = SlurmOptions(1, container=prefix)
    assert slurm.script_of(UpOptions(cpus=4), asked, Path("/my files")) == CONTAINED


@pytest.mark.parametrize("words", ["-c 4", "--cpus-per-task=4", "--cpus-per-gpu=4", "-s", "--exclusive=user"])
def test_cpus_that_the_user_named(words: str):
    """Whole nodes are asked for only where nothing says which CPUs of a node the job gets."""
    for sbatch, whole in ((words.split(), 0), (["-C", "a100", "--partition=p"], 1)):
        script = slurm.script_of(UpOptions(), SlurmOptions(1, tuple(sbatch)), Path("/f"))
        assert script.count("#SBATCH --exclusive\n") == whole


@pytest.mark.parametrize(
    "words",
    ["job.sh", "-W", "--wait", "--array=1-3", "--array 1-3", "-a1-3", "--test-only", "-M east", "--clusters=east"],
)
def test_options_of_sbatch_that_are_refused(words: str):
    """An option after which no single job of this cluster is submitted is refused, also by --dry-run."""
    with pytest.raises(RaydebugError, match="is no option that this job can have"):
        slurm.script_of(UpOptions(), SlurmOptions(1, tuple(words.split())), Path("/f"))
    slurm.script_of(UpOptions(), SlurmOptions(1, ("--partition", "gpu", "--wait-all-nodes=1")), Path("/f"))
    with pytest.raises(RaydebugError, match="there is no script without --nodes"):
        slurm.script_of(UpOptions(), SlurmOptions(folder=Path("/f")), Path("/f"))


FAKE = """#!{python}
import json, os, sys
from pathlib import Path
here = Path({folder!r})
with (here / "calls").open("a") as calls: calls.write(json.dumps(sys.argv) + "\\n")
name = Path(sys.argv[0]).name
if name == "sbatch": print("sbatch: a warning"); print("17;cluster")
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
        slurm.bring_up(UpOptions(), SlurmOptions(2, ("--partition=gpu",)), on_phase=on_phase)
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
        slurm.bring_up(UpOptions(), SlurmOptions(2), on_phase=lambda _: None)
    assert calls_of(site, "scancel") == [["17"]]
    assert not list((site / "home/raydebug/clusters/default").glob("slurm-*"))


def test_job_that_ends_while_it_starts(site: Path):
    """A job that has ended before its head was up is an error with what the nodes have said."""
    (site / "state").write_text("FAILED|INVALID|NonZeroExitCode")
    folder = site / "f"

    with pytest.raises(RaydebugError) as error:
        slurm.bring_up(
            UpOptions(), SlurmOptions(1, folder=folder),
            on_phase=lambda _: (rendezvous.make(folder), say(folder, "n1", "failed", reason="Ray ended: no space")),
        )  # fmt: skip
    assert error.value.code == "cluster.not-up"
    assert error.value.cause.startswith("job 17 is failed: NonZeroExitCode; ")
    assert not (folder / "token").exists()


def say(folder: Path, host: str, phase: str, *, role: str = "worker", reason: str | None = None) -> None:
    ip = f"10.77.0.1{host[1:]}"
    rendezvous.say_node(folder, {"host": host, "ip": ip, "role": role, "phase": phase, "reason": reason,
                                 "gateway": None, "since": time.time()})  # fmt: skip


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
        slurm.bring_up(UpOptions(), SlurmOptions(2), on_phase=on_phase)
    token = seen.pop("token")
    assert len(token) == 64
    assert set(seen) == {"job.sh"}
    assert not [name for name, text in seen.items() if token in text]
    assert token.decode() not in (site / "calls").read_text()


def test_nodes_as_slurm_and_the_nodes_say(site: Path, monkeypatch: pytest.MonkeyPatch):
    """`ps` names why a job is pending, what each node that is not up waits for, and Slurm's state of a dead one."""
    monkeypatch.setattr(slurm, "WARN_S", 300.0)
    folder = site / "f"
    rendezvous.make(folder)
    cluster = slurm._record(UpOptions(), folder, {"job": "17", "container": ""})
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

    (site / "state").unlink()
    assert kind.why_gateway_down() == "job 17 is gone"
    assert kind_of(cluster).take_down() == []
    assert state.read_record("default") is None


def test_own_allocation_runs_on(site: Path):
    """`down` of a cluster in an allocation of the user's own forgets it, and cancels nothing."""
    folder = site / "f"
    rendezvous.make(folder)
    rendezvous.publish(folder, rendezvous.Head(**HEAD))
    cluster = slurm._adopt(UpOptions(), SlurmOptions(folder=folder), lambda _: None)
    assert cluster.there.launched["job"] == "17"
    assert slurm.take_down(cluster) == []
    assert (folder / "token").is_file()
    assert not (site / "calls").exists() or calls_of(site, "scancel") == []
    rendezvous.publish(folder, rendezvous.Head(**{**HEAD, "life": "  "}))
    with pytest.raises(RaydebugError, match="has no cluster of Slurm"):
        slurm._adopt(UpOptions(), SlurmOptions(folder=folder), lambda _: None)
