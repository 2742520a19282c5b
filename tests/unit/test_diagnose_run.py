"""The diagnosis of a recorded run: joined with its hang and its snapshots, in its report and in `check train`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raydebug.check import train
from raydebug.cli import app as cli
from raydebug.diagnose.cause import FAILURE, Diagnosis
from raydebug.diagnose.read import Line, read_lines
from raydebug.diagnose.run import as_finding, diagnose_run, find_folder
from raydebug.jobs.run_folder import LOG, SNAPSHOTS, STACKS, RunFolder
from raydebug.report.run import run_page
from run_documents import failed_run
from snapshot_files import crashed_reward, write

RUN = "raydebug-1"
TIMEOUT = "(W pid=1) [rank0]: Watchdog caught collective operation timeout: ran for 600000 milliseconds\n"
MEMORY = "(Judge pid=7319) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
VERDICT = {"kind": "collective", "certainty": "certain", "text": "rank 2 is not in the all_reduce of ranks 0,1"}


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def record(log: str, *, status: str = "failed", hangs: bool = False, **more: object) -> Path:
    """Write the folder of a run."""
    folder = RunFolder(RUN)
    folder.write({"kind": "run", "id": RUN, "command": ["python", "train.py"], "status": status, **more})
    (folder.path / LOG).write_text(log)
    if hangs:
        (folder.path / STACKS).write_text(json.dumps({"version": 1, "processes": [], "verdict": VERDICT}))
    return folder.path


def names(log: str, folder: Path) -> list[str]:
    """Return the classes that a run is diagnosed as, best first."""
    return [one.name for one in diagnose_run(list(read_lines(log.splitlines())), folder).diagnoses]


def test_hang_is_joined() -> None:
    """A hang is the cause of a collective that timed out, and follows from what ended a rank; it needs no log."""
    folder = record(TIMEOUT, hangs=True)
    assert names(TIMEOUT, folder) == ["hang", "nccl-timeout"]
    assert names(TIMEOUT + MEMORY, folder) == ["cuda-oom", "hang", "nccl-timeout"]
    answer = diagnose_run([], folder)
    assert (answer.status, answer.diagnoses[0].confidence, answer.diagnoses[0].cause) == (
        FAILURE,
        "exact",
        VERDICT["text"],
    )
    assert [(one.kind, one.command) for one in answer.related] == [
        ("stacks", f"raydebug stacks --from {folder / STACKS}")
    ]


def test_hang_that_has_passed() -> None:
    """A run that ended well after a hang did not fail; stacks that cannot be read are left out."""
    assert names("", record("", status="succeeded", hangs=True)) == []
    folder = record("", hangs=True)
    for text in ("", "{", "[]", "{}", '{"verdict": 3}'):
        (folder / STACKS).write_text(text)
        assert names("", folder) == []


def test_snapshot_is_joined() -> None:
    """A run with snapshots says how to open the one of the process that failed, or the first."""
    folder = record(MEMORY)
    write(folder / SNAPSHOTS, crashed_reward(pid=1, rank=0, same="a"), "c1")
    write(folder / SNAPSHOTS, crashed_reward(pid=7319, rank=1, same="b", at=1_790_000_001.0), "c2")
    run = CliRunner().invoke(cli.app_for(["diagnose"]), ["diagnose", RUN])
    assert run.exit_code == 1
    said = f"snapshot: raydebug open {RUN} --pick 2  (ZeroDivisionError at reward.py:45 reward, Judge rank 1)\n"
    assert run.stdout.endswith(said), run.stdout
    document = json.loads(CliRunner().invoke(cli.app_for(["diagnose"]), ["diagnose", RUN, "--json"]).stdout)
    assert document["diagnoses"][0]["class"] == "cuda-oom"
    assert document["related"] == [
        {
            "kind": "snapshot",
            "command": f"raydebug open {RUN} --pick 2",
            "text": "ZeroDivisionError at reward.py:45 reward, Judge rank 1",
        }
    ]
    assert diagnose_run([], folder).related[0].command == f"raydebug open {RUN}"


def test_copied_folder(tmp_path: Path) -> None:
    """The folder of a run is read wherever it was copied to; its snapshots are no logs."""
    copied = record(MEMORY).rename(tmp_path / "a run")
    write(copied / SNAPSHOTS, crashed_reward(pid=7319))
    assert find_folder(str(copied)) == copied
    assert find_folder(str(tmp_path)) is None
    assert find_folder("no-such-run") is None
    run = CliRunner().invoke(cli.app_for(["diagnose"]), ["diagnose", str(copied)])
    assert f"snapshot: raydebug open '{copied}'" in run.stdout
    assert run.stdout.count("job.log:1") == 1


DIAGNOSIS = Diagnosis(
    "cuda-oom", "exact", "a GPU has no memory left", "the step needs more", "a smaller micro batch",
    [Line("Judge rank 1", 7, "OutOfMemoryError: hf_abcdefghijklmnopqrstuvwx", "")],
)  # fmt: skip


def test_report_shows_the_diagnosis() -> None:
    """The page of a run has the diagnosis among its findings, with the line that shows it, and no secret in it."""
    finding = as_finding(DIAGNOSIS)
    page = run_page({**failed_run(), "findings": [finding]})
    for text in ("cuda-oom", "a GPU has no memory left", "a smaller micro batch", "Judge rank 1:7: OutOfMemoryError"):
        assert text in page
    assert "hf_abcdef" not in json.dumps(finding)


def test_check_train_says_the_diagnosis() -> None:
    """A training that fails in `check train` is explained by the diagnosis that its run has left."""
    record("", findings=[{"code": "run.hangs", "what": "x"}, as_finding(DIAGNOSIS)])
    log = f"job {RUN}: python train.py\nboom\njob {RUN} failed: it ended\n"
    found = train.find_diagnosis(log)
    assert found is not None
    assert found["code"] == "cuda-oom"
    assert train.find_diagnosis("") is None
    assert train.find_diagnosis("job raydebug-2: x\n") is None
