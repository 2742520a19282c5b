"""What `raydebug run` will do: the plan for its options and for what is there, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raydebug.check.config import Need
from raydebug.cli.run_plan import Facts, RunOptions, RunPlan, plan_run
from raydebug.cluster.runner import LocalRunner
from raydebug.cluster.state import Cluster, Remote
from raydebug.commands.trainings import read_command
from raydebug.errors import Exit, RaydebugError
from raydebug.jobs.submit import Job, find_program
from raydebug.profile.rollouts import Rollouts
from raydebug.protocol import variables
from raydebug.settings.debugger import recorder_variables, widened

PPO = ["python", "-m", "verl.trainer.main_ppo"]
OWN = ["python", "train.py"]
KEYS = ("trainer.n_gpus_per_node", "trainer.nnodes")
MORE = "--gpus 8, or `raydebug up --gpus 8` first"
HERE = Path("/work/project")


def cluster(**changed: Any) -> Cluster:
    """Return a local cluster with 2 logical GPUs."""
    there = Path()
    about = {"debugger": "post-mortem", **changed}
    return Cluster(
        "mine", "id", "local", there, there, "", {}, 16, 2, about.pop("debugger"), "core", 0.0, **about
    )  # fmt: skip


def plan(
    command: list[str], there: Cluster | None = None, environ: dict[str, str] | None = None, **given: Any
) -> RunPlan:
    facts = Facts(read_command(command, {}, HERE), "/workspace", there)
    return plan_run(RunOptions(command=command, name="mine", **given), facts, environ or {})


def refusal(command: list[str], there: Cluster | None = None, **given: Any) -> str:
    with pytest.raises(RaydebugError) as refused:
        plan(command, there, **given)
    assert refused.value.exit_code == Exit.USAGE
    return str(refused.value)


def test_plan_of_a_training_without_options() -> None:
    """A training without a cluster gets the default mode, wide time limits, no note, and a watch by its steps."""
    found = plan(PPO)
    assert found.job == Job(PPO, "/workspace", variables=widened({}) | recorder_variables({}))
    assert (found.mode, found.notes) == ("breakpoint", [])
    assert found.watch is not None
    assert plan(["python", "train.py"]).notes == []


SHELL = {"REWARD": "hangs.py", "STEPS": "9", "HOME": "/home/me", "RAY_ADDRESS": "x", "WANDB_API_KEY": "k", "OTHER": "1"}


@pytest.mark.parametrize(
    ("there", "of_cluster", "words"),
    [
        (cluster(), {}, ["env", "REWARD=hangs.py", "STEPS=9", "bash", "train.sh"]),
        (cluster(), {"STEPS": "9", "REWARD": "other.py"}, ["env", "REWARD=hangs.py", "bash", "train.sh"]),
        (cluster(), SHELL, ["bash", "train.sh"]),
        (None, {}, ["bash", "train.sh"]),
    ],
    ids=["all", "what differs", "a cluster of this shell", "no cluster yet"],
)
def test_variables_of_the_shell(
    tmp_path: Path, there: Cluster | None, of_cluster: dict[str, str], words: list[str]
) -> None:
    """What a script, or one that it starts, reads of this shell reaches the job; no key, nothing of this machine."""
    (tmp_path / "train.sh").write_text(
        "echo $HOME ${RAY_ADDRESS} $WANDB_API_KEY\nbash inner.sh ${REWARD:-default.py}\n"
    )
    (tmp_path / "inner.sh").write_text('python train.py "$1" --steps "${STEPS}"\n')
    facts = Facts(read_command(["bash", "train.sh"], SHELL, tmp_path), "/w", there, environ=of_cluster)
    found = plan_run(RunOptions(command=["bash", "train.sh"], name="mine"), facts, SHELL)
    assert found.job.command == words
    named = ", ".join(word.partition("=")[0] for word in words if "=" in word)
    told = [f"note: the job gets variables of this shell that its script reads: {named}"] if named else []
    assert [note for note in found.notes if "this shell" in note] == told


def test_plan_of_all_options() -> None:
    """Every option that is for the job is in the job, under the names that the driver reads."""
    found = plan(
        PPO, cluster(), profile="debug", tiny=["model"], rollouts=Rollouts("record", Path("kept")),
        debugger="breakpoint", stop_when=["actor/gradnorm > 100"], stop_on="nonfinite", keep_watchdogs=True,
        hang_after_s=0,
    )  # fmt: skip
    assert found.job == Job(
        PPO, "/workspace", debugger="breakpoint", profile="debug", tiny=["model"], rollouts="record:kept",
        variables=recorder_variables({}) | {
            variables.STOP_ON: "nonfinite", variables.STOP_WHEN: json.dumps(["actor/gradnorm > 100"]),
            variables.STEP_LOGGERS: "verl.utils.tracking:Tracking.log(step,data)", variables.GPU_HISTORY: "1",
        },
    )  # fmt: skip
    assert found.notes == ["note: metric 'actor/gradnorm' is unknown; similar: actor/grad_norm; step 1 logs all names"]
    assert found.watch is None


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("python pipline.py --steps 2", "pipline.py"),
        ("python3 -u -X dev pipline.py", "pipline.py"),
        ("torchrun --nproc_per_node 2 sub/train.py", "sub/train.py"),
        ("bash nosuch.sh a=1", "nosuch.sh"),
        ("python train.py", None),
        ("python -m pipline", None),
        ("python -c pass pipline.py", None),
        ("bash -c pipline.sh", None),
        ("python /workspace/pipline.py", None),  # of a container
        ("tee pipline.py", None),
    ],
)
def test_a_script_that_is_not_there(command: str, missing: str | None, tmp_path: Path) -> None:
    """A command whose script is not there is refused before anything starts."""
    (tmp_path / "train.py").touch()
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("python", "python3", "torchrun", "bash", "tee"):
        (programs / name).touch(mode=0o755)
    runner = LocalRunner(str(programs / "python"))
    if missing is None:
        find_program(command.split(), tmp_path, runner)
        return
    with pytest.raises(RaydebugError) as refused:
        find_program(command.split(), tmp_path, runner)
    assert str(refused.value) == (
        f"error: there is no file {missing}\ncause: {command.split()[0]} would run it in {tmp_path}\n"
        "fix: check its name, and the folder that you start the run in"
    )


def test_gpu_history() -> None:
    """--gpu-history and the profile debug have torch record GPU memory; nothing else does."""
    given: list[dict[str, Any]] = [{"gpu_history": True}, {"profile": "debug"}, {"profile": "full"}, {}]
    assert [variables.GPU_HISTORY in plan(PPO, cluster(), **one).job.variables for one in given] == [
        True, True, False, False,
    ]  # fmt: skip


def test_mode_in_force() -> None:
    """Without --debugger the mode is the cluster's; with the debugger off, a job gets no variables of debugging."""
    assert plan(PPO, cluster(debugger="off")).job == Job(PPO, "/workspace")
    assert plan(PPO, cluster(debugger="off"), {"RAY_DEBUG": "1"}).job.debugger == "breakpoint"
    off = plan(PPO, cluster(), debugger="off")
    assert (off.mode, off.job.debugger, off.job.variables, off.watch) == ("off", "off", {}, None)


@pytest.mark.parametrize(
    ("given", "profile"),
    [
        ({}, None),
        ({"tiny": ["data"]}, "full"),
        ({"rollouts": Rollouts("only-rollout")}, "full"),
        ({"tiny": ["data"], "profile": "debug"}, "debug"),
    ],
)
def test_profile_in_force(given: dict[str, Any], profile: str | None) -> None:
    """What is tiny, and what is done with rollouts, needs a profile: without --profile it is `full`."""
    assert plan(PPO, **given).job.profile == profile


def test_note_that_no_training_is_in_sight(tmp_path: Path) -> None:
    """A profile over a command that shows no training is noted first; a script that cannot be read may start one."""
    note = "note: no training command is found; the profile applies to one that this command starts"
    script = tmp_path / "run.sh"
    script.write_text("exit 3\n")
    for command in (OWN, ["bash", str(script)]):
        assert plan(command, profile="debug").notes[0] == note
    script.write_text("python -m verl.trainer.main_ppo\n")
    for command in (PPO, ["bash", str(script)], ["bash", "nosuch.sh"]):
        assert note not in plan(command, profile="debug").notes
    assert note not in plan(OWN).notes


def test_which_job_is_watched() -> None:
    """A known training is watched by default, another command with --hang-after; 0 watches nothing."""
    assert plan(OWN).watch is None
    assert plan(OWN, hang_after_s=30.0).watch is not None
    assert plan(PPO, hang_after_s=0).watch is None
    assert plan(PPO, cluster(), detach=True).watch is None  # nobody follows it


@pytest.mark.parametrize(
    ("there", "given", "cause"),
    [
        (cluster(), {"detach": True}, "with --detach nobody follows the job"),
        (
            cluster(debugger="off"), {},
            "processes answer `raydebug stacks` in the modes breakpoint and post-mortem; the debugger is 'off'",
        ),
        (
            cluster(remote=Remote("http://head:8265", "", "")), {},
            "the cluster has no gateway, so its processes cannot be asked for their stacks",
        ),
    ],
    ids=["detached", "off", "no gateway"],
)  # fmt: skip
def test_watch_that_is_not_possible(there: Cluster, given: dict[str, Any], cause: str) -> None:
    """--hang-after is refused where the watch could not ask processes for their stacks."""
    assert refusal(PPO, there, hang_after_s=60.0, **given) == (
        f"error: --hang-after is not possible here\ncause: {cause}\nfix: leave --hang-after out, or change that"
    )


def test_detached_run_alone() -> None:
    """`run --detach` is refused without a cluster, and on one that ends with another `run`: what makes it stay."""
    assert refusal(PPO, detach=True) == (
        "error: --detach needs a cluster that stays\n"
        "cause: no cluster 'mine' runs, and the one that `run` brings up ends with it\n"
        "fix: raydebug up, then the same command again"
    )
    assert refusal(PPO, cluster(owner=4711), detach=True).splitlines()[1] == (
        "cause: a `run` (pid 4711) has started cluster 'mine', which ends with the last `run` that uses it"
    )


def fitted(need: Need | None, there: int | None, running: Cluster | None = None, asked: int | None = None) -> int:
    reading = read_command(PPO, {}, HERE)
    facts = Facts(reading, "/workspace", running, gpus=there, why_so_many=f"--gpus is {asked}", need=need)
    return plan_run(RunOptions(command=PPO, name="mine", gpus=asked), facts, {}).gpus


def test_gpus_of_a_cluster_that_is_started() -> None:
    """On a CPU a cluster is started with as many logical GPUs as the command asks for; else with those of --gpus."""
    assert fitted(Need(8, on_cpu=True, keys=KEYS), 0) == 8
    assert fitted(Need(1, on_cpu=True, keys=KEYS), 2, asked=2) == 2
    assert fitted(None, 2, asked=2) == 2
    assert fitted(Need(8, on_cpu=True, keys=KEYS), None, cluster()) == 0  # a cluster that does not answer
    assert fitted(Need(2, on_cpu=False, keys=KEYS), 2, cluster()) == 2


@pytest.mark.parametrize(
    ("on_cpu", "running", "cause", "fix"),
    [
        (True, None, "--gpus is 2", MORE),
        (
            False, None, "--gpus is 2",
            f"run it where there are as many GPUs, or for logical ones {MORE}",
        ),
        (
            True, cluster(), "its nodes have no more",
            "`raydebug down`, then `raydebug up --gpus 8`",
        ),
        (  # `down` would end the other job
            True, cluster(owner=4711), "it was started for another `raydebug run` (pid 4711)",
            "another name (--name NAME) for a cluster of its own",
        ),
    ],
    ids=["cpu", "gpu", "running", "of a run"],
)  # fmt: skip
def test_more_gpus_than_there_are(on_cpu: bool, running: Cluster | None, cause: str, fix: str) -> None:
    """A training that asks for more GPUs than its cluster has is refused, in the words of its trainer; exit code 2."""
    for per_node, nodes in (KEYS, ("actor.num_gpus_per_node", "actor.num_nodes")):
        with pytest.raises(RaydebugError) as refused:
            fitted(Need(8, on_cpu=on_cpu, keys=(per_node, nodes)), 2, running, asked=None if running else 2)
        assert str(refused.value) == (
            "error: the command asks for 8 GPUs, cluster 'mine' has 2\n"
            f"cause: {per_node} times {nodes} is 8; {cause}\n"
            f"fix: {fix}, or a smaller {per_node}"
        )
        assert refused.value.exit_code == Exit.USAGE
