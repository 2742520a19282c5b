"""The profile inside the driver of a job: real processes with the hook, started as a job's shell starts them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from raydebug.protocol import variables
from raydebug.settings.flavours import install
from verl_fork import make_fork

PPO = ("python", "-m", "verl.trainer.main_ppo")


def drive(
    *command: str, folder: Path, profile: str = "debug", tiny: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command as a job does: with the hook in every Python, and the profile in the environment."""
    ours = {variables.GATEWAY: "127.0.0.1:9", variables.PROFILE: profile, variables.TINY: tiny}
    environ = {**os.environ, **ours, **environment}
    environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ["PATH"]])
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=50)


def arguments(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return [line.strip() for line in done.stdout.partition("TRAINING\n")[2].splitlines()]


def test_the_trainer_gets_the_new_arguments(tmp_path: Path) -> None:
    """The trainer's own sys.argv is the small one, and the job's log has each change with its reason."""
    make_fork(tmp_path, version="0.9.1")
    done = drive(*PPO, "data.train_batch_size=512", "x.y=1", folder=tmp_path)
    given = arguments(done)
    assert given[0] == "x.y=1"
    assert "data.train_batch_size=8" in given
    assert "data.train_batch_size=512" not in given
    log = done.stderr.splitlines()
    assert log[0].startswith("raydebug: the profile 'debug' changes ")
    assert "  data.train_batch_size: 512 -> 8 (enough prompts for a batch; a multiple of the 8 ranks" in done.stderr


def test_a_profile_is_applied_when_the_program_begins(tmp_path: Path) -> None:
    """While Python reads its site's files no third-party package is imported, and what they do to sys.path counts."""
    make_fork(tmp_path / "later", version="0.9.1")
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nprint('packages:', *{'yaml', 'raydebug.profile.load'} & {*sys.modules})\n"
        f"sys.path.append({str(tmp_path / 'later')!r})\n"
    )
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    done = drive(*PPO, "data.train_batch_size=512", folder=tmp_path, PYTHONPATH=path)
    assert done.stdout.startswith("packages:\n")
    assert "data.train_batch_size=8" in arguments(done)


def test_rays_own_programs_are_not_armed(tmp_path: Path) -> None:
    """Uncaught errors of Ray's commands and daemons are Ray's; a user's program may have their words as arguments."""
    for program, is_armed in (("bin/ray", False), ("ray/_private/log_monitor.py", False), ("bin/raytrain", True)):
        (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / program).write_text("import sys\nprint(sys.excepthook is not sys.__excepthook__)\n")
        argv = ("python", "-u", str(tmp_path / program), "/x/ray/dashboard/dashboard.py")
        assert drive(*argv, folder=tmp_path).stdout == f"{is_armed}\n"


def test_what_changed_is_a_file(tmp_path: Path) -> None:
    """The driver of a job writes what it changed as JSON beside Ray's logs, a second training of the job too."""
    make_fork(tmp_path, version="0.9.1")
    logs = tmp_path / "logs"
    logs.mkdir()
    of_job = {variables.JOB: "raydebug-1", variables.RAY_LOGS: str(logs)}
    for size in (512, 256):
        drive(*PPO, f"data.train_batch_size={size}", folder=tmp_path, **of_job)
    rows = json.loads((logs / "raydebug-profile-raydebug-1.json").read_text())
    batches = [(row["old"], row["new"]) for row in rows if row["key"] == "data.train_batch_size"]
    assert batches == [("512", "8"), ("256", "8")]
    assert all(set(row) == {"key", "old", "new", "why"} for row in rows)


def test_a_script_needs_no_reading(tmp_path: Path) -> None:
    """A script that no static reading could follow is laid over where its trainer starts, pipes and loops and all."""
    make_fork(tmp_path, version="0.4.0", like="0.4.0")
    (tmp_path / "run.sh").write_text(
        'for n in $(seq 2 2); do\n  A="data.train_batch_size=$((512 * n))"\n  set -x\n'
        '  env python -m verl.trainer.main_ppo "$A" $(echo trainer.save_freq=3) "$@" 2>&1 | tee run.log\ndone\n'
    )
    done = drive("bash", "run.sh", "trainer.test_freq=7", folder=tmp_path)
    given = arguments(done)
    assert {"data.train_batch_size=8", "trainer.save_freq=-1", "trainer.test_freq=-1"} <= set(given)
    assert "trainer.save_freq: 3 -> -1" in done.stdout


def test_a_fork_by_another_name(tmp_path: Path) -> None:
    """A fork with keys of its own: known ones change, its own stay, those it lacks are named, none is added."""
    make_fork(
        tmp_path, package="verl_arpo", like="0.4.1", without=("data.max_response_length",),
        more={"actor_rollout_ref.rollout.beam_size": 1},
    )  # fmt: skip
    done = drive("python", "-m", "verl_arpo.trainer.main_ppo", "actor_rollout_ref.rollout.beam_size=4", folder=tmp_path)
    given = arguments(done)
    assert "actor_rollout_ref.rollout.beam_size=4" in given
    assert not any("max_response_length" in word for word in given)
    assert "left alone, it has no key for: response_tokens, " in done.stderr
    unknown = "a release of verl that states no version is not known"
    assert f"{unknown}; its config is most like that of verl 0.4.1" in done.stderr


def test_torchrun_is_changed_once(tmp_path: Path) -> None:
    """What torchrun starts has the new arguments; the launcher was changed, and its processes are not changed again."""
    make_fork(tmp_path, trainer="sft", module="sft_trainer", version="0.9.1")
    (tmp_path / "torchrun").write_text(  # torch's own is not in this environment; the form of its command line is
        "import subprocess, sys\nprint('LAUNCHED', *sys.argv[1:])\nat = sys.argv.index('-m')\n"
        "subprocess.run([sys.executable, '-u', *sys.argv[at:]], check=True)\n"
    )
    done = drive(
        *("python", "./torchrun", "--nproc_per_node=4", "-m", "verl.trainer.sft_trainer", "data.train_batch_size=96"),
        folder=tmp_path,
        VERL_PLATFORM="cpu",
    )
    assert "data.train_batch_size=4" in arguments(done)
    assert "LAUNCHED --nproc_per_node=1 -m verl.trainer.sft_trainer" in done.stdout
    assert done.stderr.count("raydebug: the profile") == 1


def test_only_the_first_rank_speaks(tmp_path: Path) -> None:
    """Where another launcher starts the ranks, each changes its own arguments and only rank 0 says so."""
    make_fork(tmp_path, trainer="sft", module="sft_trainer", version="0.9.1")
    for rank, lines in (("0", True), ("3", False)):
        done = drive("python", "-m", "verl.trainer.sft_trainer", folder=tmp_path, RANK=rank, WORLD_SIZE="6")
        assert "data.train_batch_size=6" in arguments(done)
        assert bool(done.stderr) == lines
    assert (tmp_path / ".raydebug" / ".gitignore").read_text() == "*\n", "its checkpoints are no part of the project"


def test_a_version_that_is_not_known_is_read_by_its_config(tmp_path: Path) -> None:
    """A verl newer than our table is changed by the keys that its config has, and the log says by whose."""
    make_fork(tmp_path, version="7.0.0", without=("trainer.save_freq",))
    done = drive(*PPO, folder=tmp_path)
    assert "data.train_batch_size=8" in arguments(done)
    assert "verl 7.0.0 is not known; its config is most like that of verl 0.9.0, whose keys are used" in done.stderr
    assert "left alone, it has no key for: save_every" in done.stderr


def test_a_profile_that_cannot_be_laid_ends_the_job(tmp_path: Path) -> None:
    """The whole training does not start in the place of the small one: three lines in the log, exit code 2."""
    make_fork(tmp_path, version="7.0.0")
    unread = "verl 7.0.0 is installed, and its config cannot be read: there is no nosuch.yaml in "
    for word, cause in (
        ("trainer.save_frequ=3", "the nearest is trainer.save_freq"), ("--config-name=nosuch", unread),
    ):  # fmt: skip
        done = drive(*PPO, word, folder=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["error", "cause", "fix"]
        assert cause in done.stderr


def test_a_removed_folder_ends_the_job(tmp_path: Path) -> None:
    """In a folder that was removed no profile can be applied: the whole training does not start."""
    make_fork(tmp_path, version="0.9.1")
    away = "mkdir gone && cd gone && rmdir ../gone && exec python -m verl.trainer.main_ppo trainer.nnodes=1"
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = drive("sh", "-c", away, folder=tmp_path, PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cause: the folder in which it was started does not exist any more" in done.stderr


def test_other_programs_run_as_they_are(tmp_path: Path) -> None:
    """A program that is no training is not touched, whatever the profile, and nothing is said."""
    (tmp_path / "train.py").write_text("import sys; print(sys.argv)\n")
    done = drive("python", "train.py", "data.train_batch_size=512", folder=tmp_path)
    assert (done.stdout, done.stderr) == ("['train.py', 'data.train_batch_size=512']\n", "")


def test_tiny_parts_that_cannot_be_made_end_the_job(tmp_path: Path) -> None:
    """Where torch is missing, the three lines of `raydebug tiny` are the job's last, and nothing is left behind."""
    if shutil.which("python") and _has("torch"):
        pytest.skip("torch is here: tests/cpu makes a model")
    make_fork(tmp_path, version="0.9.1")
    done = drive(*PPO, folder=tmp_path, tiny="model")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == f"raydebug: making a tiny model in {tmp_path}/.raydebug/tiny/model-qwen2"
    assert done.stderr.splitlines()[1:] == [
        "error: a tiny model needs torch and transformers",
        "cause: No module named 'torch' (this is the core flavour, which has neither)",
        f"fix: install the cpu flavour: {install(flavour='cpu')}",
    ]
    assert {path.name for path in (tmp_path / ".raydebug").rglob("*")} == {".gitignore", "tiny"}


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    """A tiny model that an earlier run made is taken as it is."""
    make_fork(tmp_path, version="0.9.1")
    (tmp_path / ".raydebug" / "tiny" / "model-qwen2").mkdir(parents=True)
    given = arguments(drive(*PPO, folder=tmp_path, tiny="model", profile="full"))
    assert f"actor_rollout_ref.model.path={tmp_path}/.raydebug/tiny/model-qwen2" in given
    assert "data.train_batch_size=4" not in given


class Here:
    """This Python, as a cluster's."""

    def run_python(self, arguments: list[str], working_dir: Path) -> str:
        return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True).stdout


def _has(package: str) -> bool:
    found = Here().run_python(["-c", f"import importlib.util as u; print(u.find_spec('{package}') or '')"], Path())
    return bool(found.strip())
