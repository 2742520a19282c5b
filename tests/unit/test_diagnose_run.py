"""The diagnosis of a recorded run: joined with its hang and its snapshots, in its report and in `check train`."""

from __future__ import annotations

import doctest
import json
import os
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raydebug.check import train
from raydebug.cli import app as cli
from raydebug.diagnose import fix
from raydebug.diagnose.again import plan_again
from raydebug.diagnose.answer import FAILURE, NO_FAILURE, Answer, Diagnosis
from raydebug.diagnose.fix import apply_fix, evaluate
from raydebug.diagnose.read import Line, read_lines
from raydebug.diagnose.rules import load_rules
from raydebug.diagnose.run_diagnosis import add_command, as_finding, diagnose_run, find_run
from raydebug.errors import RaydebugError
from raydebug.jobs.submit import Job, folder_of, job_entrypoint, job_variables
from raydebug.report.run import run_page
from raydebug.runs.folder import LOG, SNAPSHOTS, STACKS, RunFolder
from raydebug.runs.record import read_document
from raydebug.trainers.registry import words
from raydebug.worker import script_exports
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
    document = {"kind": "run", "id": RUN, "command": ["python", "train.py"], "status": status, **more}
    folder.write(read_document(document))
    (folder.path / LOG).write_text(log)
    if hangs:
        (folder.path / STACKS).write_text(json.dumps({"version": 1, "processes": [], "verdict": VERDICT}))
    return folder.path


def diagnosed(log: str, folder: Path) -> Answer:
    """Return the diagnosis of a run."""
    run = find_run(str(folder))
    answer = diagnose_run(list(read_lines(log.splitlines())), run)
    assert all(one.command is None for one in answer.diagnoses)  # until it is asked for
    add_command(answer, run)
    return answer


def names(log: str, folder: Path) -> list[str]:
    """Return the classes that a run is diagnosed as, best first."""
    return [one.name for one in diagnosed(log, folder).diagnoses]


def test_hang_is_joined() -> None:
    """A hang is the cause of a collective that timed out, and follows from what ended a rank; it needs no log."""
    folder = record(TIMEOUT, hangs=True)
    assert names(TIMEOUT, folder) == ["hang", "nccl-timeout"]
    assert names(TIMEOUT + MEMORY, folder) == ["cuda-oom", "hang", "nccl-timeout"]
    answer = diagnosed("", folder)
    assert (answer.status, answer.diagnoses[0].confidence, answer.diagnoses[0].cause) == (
        FAILURE,
        "exact",
        VERDICT["text"],
    )
    assert [(one.kind, one.command) for one in answer.related] == [
        ("stacks", f"raydebug stacks --from {folder / STACKS}")
    ]


def test_run_that_ended_well() -> None:
    """A run that ended well did not fail, whatever its logs have, and whether it has hung or not."""
    answer = diagnosed(MEMORY, record(MEMORY, status="succeeded", hangs=True))
    assert (answer.status, answer.diagnoses, answer.related) == (NO_FAILURE, [], [])


def test_stacks_that_cannot_be_read() -> None:
    """Stacks that cannot be read are left out."""
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
    assert diagnosed("", folder).related[0].command == f"raydebug open {RUN}"


def test_copied_folder(tmp_path: Path) -> None:
    """The folder of a run is read wherever it was copied to; its snapshots are no logs."""
    copied = record(MEMORY).rename(tmp_path / "a run")
    write(copied / SNAPSHOTS, crashed_reward(pid=7319))
    run = find_run(str(copied))
    assert run is not None
    assert run.id == RUN
    assert find_run(str(tmp_path)) is None
    assert find_run("no-such-run") is None
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
    page = run_page(read_document({**failed_run(), "findings": [finding]}))
    for text in ("cuda-oom", "a GPU has no memory left", "a smaller micro batch", "Judge rank 1:7: OutOfMemoryError"):
        assert text in page
    assert "hf_abcdef" not in json.dumps(finding)


def test_check_train_says_the_diagnosis() -> None:
    """A training that fails in `check train` is explained by the diagnosis that its run has left."""
    record("", findings=[{"code": "run.hangs", "what": "x"}, as_finding(DIAGNOSIS)])
    log = f"job {RUN}: python train.py\nboom\njob {RUN} failed: it ended\n"
    assert [one["code"] for one in train.recorded_run(log).findings] == ["run.hangs", "cuda-oom"]
    assert train.recorded_run("") == train.recorded_run("job raydebug-2: x\n") == train.NOT_RECORDED


# Fixes that can be applied

PPO = ["python", "-m", "verl.trainer.main_ppo", "data.train_batch_size=64"]
ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
LINES = {
    "ValueError: Free memory on device cuda:0 (16.17/44.39 GiB) on startup is less than desired GPU memory utilization"
    " (0.6, 26.64 GiB).": [f"{ROLLOUT}.gpu_memory_utilization=0.36"],
    "ValueError: No available memory for the cache blocks.": [f"{ROLLOUT}.gpu_memory_utilization=0.6"],
    "RuntimeError: CuMemAllocator failed: out of memory": [f"{ROLLOUT}.gpu_memory_utilization=0.4"],
    "AssertionError: real_train_batch_size (64) must be divisible by minimal possible batch size (24)": [
        "data.train_batch_size=48", f"{ACTOR}.ppo_mini_batch_size=48"],
    "AssertionError: rollout world_size: 3 is not divisible by infer_tp: 2": [
        f"{ROLLOUT}.tensor_model_parallel_size=1"],
    "ValueError: Total number of attention heads (15) must be divisible by tensor parallel size (2).": [
        f"{ROLLOUT}.tensor_model_parallel_size=1"],
    "ValueError: User-specified max_model_len (65536) is greater than the derived max_model_len"
    " (max_position_embeddings=32768.0 or model_max_length=None in model's config.json).": [
        f"{ROLLOUT}.max_model_len=32768"],
    "ValueError: max_num_batched_tokens (8192) is smaller than max_model_len (32768).": [
        f"{ROLLOUT}.max_num_batched_tokens=32768"],
    "ValueError: Total available GPUs 2.0 is less than total desired GPUs 8": ["trainer.n_gpus_per_node=2"],
    "RuntimeError: CUDA error: operation not permitted when stream is capturing": [f"{ROLLOUT}.enforce_eager=true"],
    "RuntimeError: DataLoader worker (pid 2) is killed by signal: Bus error.": ["data.dataloader_num_workers=0"],
    "RuntimeError: Cannot re-initialize CUDA in forked subprocess.": ["VLLM_WORKER_MULTIPROC_METHOD=spawn"],
    "RuntimeError: CUDA error: an illegal memory access was encountered": ["CUDA_LAUNCH_BLOCKING=1"],
    "RuntimeError: CUDA error: peer access is not supported between these two devices": ["NCCL_P2P_DISABLE=1"],
    "wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])": [
        "WANDB_MODE=offline"],
    "ModuleNotFoundError: No module named 'math_verify'": [],
}  # fmt: skip


@pytest.mark.parametrize(("line", "new"), LINES.items(), ids=[line[:40] for line in LINES])
def test_fix_of_a_line(line: str, new: list[str]) -> None:
    """A fix is the user's command with the trainer's own keys, or with variables; a package has none."""
    first = diagnosed(line, record(line, command=PPO)).diagnoses[0]
    assert ([word for word in shlex.split(first.command) if word in new] if first.command else []) == new
    assert (first.command is None) == (new == [])


def test_fix_of_memory() -> None:
    """Where a GPU has no memory left, every micro batch that the command gives is halved."""
    given = [f"{ACTOR}.ppo_micro_batch_size_per_gpu=8", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=16"]
    command = [*PPO, f"{ACTOR}.ppo_mini_batch_size=64"]
    answer = diagnosed(MEMORY, record(MEMORY, command=[*command, *given]))
    assert answer.diagnoses[0].command == shlex.join(
        [*command, f"{ACTOR}.ppo_micro_batch_size_per_gpu=4", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=8"]
    )
    assert answer.diagnoses[0].fix.endswith(
        f"; {ACTOR}.ppo_micro_batch_size_per_gpu: 8 -> 4, {ROLLOUT}.log_prob_micro_batch_size_per_gpu: 16 -> 8"
    )
    assert [(one.kind, one.command) for one in answer.related] == [("again", f"raydebug run --again {RUN}")]


def test_words_of_the_rules() -> None:
    """The rules name settings in raydebug's words, and no key of a trainer."""
    used = {word for rule in load_rules() for one in rule.apply for word in one.override}
    assert used <= words()
    assert doctest.testmod(fix).failed == 0


@pytest.mark.parametrize(
    "formula", ["old * 2", "?", "3 / ?", "a b", "$(x)", "9" * 400 + " * 2", "old, a divisor of 0x"]
)
def test_values_that_are_none(formula: str) -> None:
    """A value that needs the old number, or that a log has spoilt, is no value."""
    assert evaluate(formula, "x") is None
    assert evaluate("4, a divisor of 0", None) == "1"
    assert evaluate("4, a multiple of 0", None) == "4"
    assert evaluate("4 / 0", None) == "4"
    assert evaluate("old * 0.5", "0") == "0"


def test_fix_through_a_script(tmp_path: Path) -> None:
    """A script that passes its arguments on gets the new settings behind them; another one is left alone."""
    script = tmp_path / "train.sh"
    script.write_text(f"python -m verl.trainer.main_ppo {ROLLOUT}.gpu_memory_utilization=0.5 $@\n")
    fixed = apply_fix(["bash", "train.sh", "x.y=1"], {"gpu_memory": "old * 0.8"}, {}, folder=tmp_path)
    assert fixed is not None
    assert fixed.command == ["bash", "train.sh", "x.y=1", f"{ROLLOUT}.gpu_memory_utilization=0.4"]
    script.write_text("python -m verl.trainer.main_ppo\n")
    assert apply_fix(["bash", "train.sh"], {"gpu_memory": "0.4"}, {}, folder=tmp_path) is None
    script.write_text(f"python -m verl.trainer.main_ppo $@ {ROLLOUT}.gpu_memory_utilization=0.5\n")
    assert apply_fix(["bash", "train.sh"], {"gpu_memory": "0.4"}, {}, folder=tmp_path) is None
    assert apply_fix(["bash", "none.sh"], {"gpu_memory": "0.4"}, {}, folder=tmp_path) is None


def test_fix_of_other_trainers(tmp_path: Path) -> None:
    """The same words are options of OpenRLHF; a program that is no known training gets variables only."""
    command = ["python3", "-m", "openrlhf.cli.train_ppo_ray", "--vllm.gpu_memory_utilization", "0.5"]
    fixed = apply_fix(command, {"gpu_memory": "old * 0.8", "attention": "sdpa"}, {}, folder=tmp_path)
    assert fixed is not None
    assert fixed.command[3:] == ["--vllm.gpu_memory_utilization", "0.4", "--ds.attn_implementation", "sdpa"]
    assert apply_fix(["python", "train.py"], {"gpu_memory": "0.4"}, {}, folder=tmp_path) is None
    assert apply_fix(["python", "train.py"], {"gpu_memory": "0.4"}, {"A": "1"}, folder=tmp_path) == fix.Fixed(
        ["env", "A=1", "python", "train.py"], ["A=1"]
    )
    assert apply_fix(["env", "A=1", "python", "train.py"], {}, {"A": "1"}, folder=tmp_path) is None


def test_fix_under_a_profile(tmp_path: Path) -> None:
    """The old value is the one that was in force: that of the profile under which the run failed."""
    command = [*PPO, f"{ACTOR}.ppo_micro_batch_size_per_gpu=64", "trainer.n_gpus_per_node=1"]
    fixed = apply_fix(command, {"micro_batch_size": "old * 0.5"}, {}, folder=tmp_path, profile="debug")
    assert fixed is not None
    assert f"{ACTOR}.ppo_micro_batch_size_per_gpu=2" in fixed.command


# run --again


def test_again_with_the_fix(tmp_path: Path) -> None:
    """The command of a run is run again in its folder, under its profile, with the fix that its logs ask for."""
    record(
        "ValueError: No available memory for the cache blocks.\n",
        command=PPO, working_dir=str(tmp_path), profile="debug", variables={"RAYDEBUG_TINY": "model data"},
    )  # fmt: skip
    plan = plan_again(RUN, "no-such-cluster")
    assert plan.command == [*PPO, f"{ROLLOUT}.gpu_memory_utilization=0.6"]
    assert (plan.folder, plan.profile, plan.tiny) == (tmp_path, "debug", ["model", "data"])
    assert plan.notes[0].startswith(f"again: {RUN} with a fix for vllm-kv-cache-oom: ")
    assert plan.notes[1] == f"command: {shlex.join(plan.command)}"


def test_again_with_what_run_has_said() -> None:
    """The fix for the line that `run` has shown is applied, although the logs of the workers are gone."""
    error = "wandb.errors.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])"
    said = {"code": "wandb-login", "what": "no key", "fix": "offline", "evidence": f"Worker pid 7:12: {error}"}
    record("", command=["python", "x.py"], findings=[{"code": "run.hangs", "what": "x"}, said])
    plan = plan_again("last", "no-such-cluster")
    assert plan.command == ["env", "WANDB_MODE=offline", "python", "x.py"]
    assert plan.notes[0].startswith(f"again: {RUN} with a fix for wandb-login: ")


def test_again_runs_no_command_of_a_finding() -> None:
    """A command that stands in a finding of the record is not run: the fix is computed from the run's own command."""
    said = {"code": "wandb-login", "what": "x", "fix": "y", "command": "sh -c 'touch /marker'", "evidence": "x:1: y"}
    record("", command=["python", "x.py"], findings=[said])
    assert plan_again("last", "no-such-cluster").command == ["python", "x.py"]


def test_again_of_a_folder_of_somebody_else(tmp_path: Path) -> None:
    """A folder outside of the own runs is refused, whatever its record says; `diagnose` reads it, without `again`."""
    folder = record("ValueError: No available memory for the cache blocks.\n", command=PPO, working_dir=str(tmp_path))
    foreign = folder.rename(tmp_path / "unpacked")
    with pytest.raises(RaydebugError, match="cannot be run again") as refusal:
        plan_again(f"{foreign}/", "no-such-cluster")
    assert refusal.value.cause == f"{foreign} is not among the runs of this account: its command may be anybody's"
    assert [one.kind for one in diagnosed((foreign / LOG).read_text(), foreign).related] == []


def test_again_without_a_fix() -> None:
    """Without a fix that can be applied the command is run as it was, and that is said."""
    record("ModuleNotFoundError: No module named 'math_verify'\n", command=["python", "x.py"])
    plan = plan_again(RUN, "no-such-cluster")
    assert plan.command == ["python", "x.py"]
    assert plan.notes[0].startswith(f"again: {RUN} as it was; there is no fix that can be applied: a package is not")
    record("", command=["python", "x.py"], status="succeeded")
    said = plan_again(RUN, "no-such-cluster").notes[0]
    assert said == f"again: {RUN} as it was; there is no fix that can be applied: no failure is found in its logs"


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"command": []}, "its record has no command"),
        ({"command": ["x", "hf.token=(hidden)"]}, "its record keeps no secrets: hf.token=(hidden)"),
        ({"working_dir": "/no/such/folder"}, "it ran in /no/such/folder, which is not on this machine"),
    ],
)
def test_again_is_refused(changed: dict[str, object], cause: str) -> None:
    """A run whose command or folder is not known is refused, and so is an unknown run."""
    record("", **{"command": ["x"], **changed})
    with pytest.raises(RaydebugError, match=f"run '{RUN}' cannot be run again") as refusal:
        plan_again(RUN, "no-such-cluster")
    assert refusal.value.cause == cause
    with pytest.raises(RaydebugError, match="there is no run 'x'"):
        plan_again("x", "no-such-cluster")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "there is no command to run"),
        (["--again", "x", "--", "python", "x.py"], "--again has the command of the run, and one is given"),
        (["--again", "x"], "no run is recorded"),
    ],
)
def test_run_needs_one_command(arguments: list[str], says: str) -> None:
    """`run` takes a command or a run, not both and not none: exit code 2."""
    failed = CliRunner().invoke(cli.app_for(["run"]), ["run", *arguments]).exception
    assert isinstance(failed, RaydebugError)
    assert (failed.what, failed.exit_code) == (says, 2)


def test_variables_of_the_command() -> None:
    """What `env` sets in a command is set for the workers too, but for secrets and what chooses GPUs or a cluster."""
    given = ["A=1", "HF_TOKEN=x", "CUDA_VISIBLE_DEVICES=0", "RAY_ADDRESS=x", "RAYDEBUG_PATCHES=p"]
    command = ["/usr/bin/env", "-uX", *given, "python", "B=2"]
    job = Job(command=command, working_dir="/w w", variables={"C": "3"})
    found = job_variables(job, "raydebug-1")
    others = {"A": "1", "C": "3", "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1"}  # without it a job refuses what ray.init gives
    assert {name: value for name, value in found.items() if not name.startswith("RAYDEBUG")} == others
    assert found["RAYDEBUG_PATCHES"] == "p"
    assert folder_of(job_entrypoint(job)) == "/w w"
    assert folder_of("python x.py") is None


def test_exports_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports that do not fit into the argument that starts a worker are packed; what ray.init gives wins over them."""
    now = {f"N{i}": "x" * 600 for i in range(240)}
    monkeypatch.setattr(script_exports, "_entrypoint_environ", lambda: {"N1": "a"})
    monkeypatch.setattr(script_exports, "_environ", lambda _pid: now)
    monkeypatch.setenv(script_exports.JOB_CONFIG, json.dumps({"runtime_env": {"env_vars": {"N1": "a"}}}))
    for _driver_and_its_child in range(2):
        script_exports.share_exports()
    assert len(os.environ[script_exports.JOB_CONFIG]) < 128 * 1024
    given = {**json.loads(os.environ[script_exports.JOB_CONFIG])["runtime_env"]["env_vars"], "N2": "ray.init"}
    assert script_exports.unpack(given) == {**now, "N2": "ray.init", "RAYDEBUG_EXPORTS": ""}
