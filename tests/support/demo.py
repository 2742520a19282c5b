"""Runs a real verl GRPO training in DEBUG size and stops it in the reward function and in the actor's update."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from raydebug import process, render
from raydebug.client.gateway_client import fetch_pauses
from raydebug.cluster.find import load_cluster
from raydebug.errors import Exit, RaydebugError
from raydebug.jobs.phases import Phases
from raydebug.protocol.listings import ListedPause

CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # ECMA-48 CSI sequences, colours included
STEP = re.compile(r"\bstep:\d+ - .*")
NAME = "demo"
JOB_LIMIT_S = 480.0
PAUSE_LIMIT_S = 300.0
COMMAND_LIMIT_S = 300.0  # beyond their own limits, whose words say more: `up` waits 240 s (compose/project.py)
REWARD = "data/reward.py:compute_score"
# verl 0.9.1; called by the actor for each micro batch
UPDATE = "verl.trainer.ppo.core_algos:compute_policy_loss_vanilla"
TRAINING = (
    *("python", "-m", "verl.trainer.main_ppo", "algorithm.adv_estimator=grpo"),
    *("data.train_files=data/train.parquet", "data.val_files=data/test.parquet"),
    *("actor_rollout_ref.model.path=model", "actor_rollout_ref.rollout.name=vllm"),
    "reward.custom_reward_function.path=data/reward.py",
)
KINDS = {"local": ("--cluster", "local"), "compose": ("--cluster", "compose", "--flavour", "cpu")}
# verl 0.9.1; the actor's forward pass through a model with images
FORWARD = "verl.models.transformers.qwen2_vl:qwen2_vl_forward"
CORRELATION = re.compile(r"training/rollout_actor_probs_pearson_corr:(?:np\.float\d+\()?(-?[\d.]+)")
LOOKS = {
    "compute_score": ("w", "args", "p solution_str"),
    "qwen2_vl_forward": ("w", "p image_grid_thw", "tensor pixel_values"),
    "compute_policy_loss_vanilla": ("w", "p rollout_is_weights", "tensor log_prob", "tensor advantages"),
}


class Training:
    """One run of the training.

    Args:
        arguments: what follows `raydebug run`.
        folder: where it runs; its log is written there.
    """

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self.log = folder / "job.log"
        self.steps: list[str] = []
        self.phases = Phases(time.monotonic())
        self.paused_s = 0.0  # not counted in the phases
        self._last = "(nothing yet)"
        with self.log.open("wb") as output:
            argv = [sys.executable, process.SAFE_PATH, "-m", "raydebug", "run", *arguments]
            self.process: subprocess.Popen[bytes] = process.start(argv, env=os.environ, output=output, cwd=folder)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def is_running(self) -> bool:
        """Whether the job still runs."""
        return self.process.poll() is None

    @property
    def last_line(self) -> str:
        """What the log said last."""
        return self._last

    @property
    def training_s(self) -> float:
        """Seconds from submission to the end of the second step; 0 before it has ended."""
        return next((step["end_s"] for step in self.phases.steps if step["step"] == 2), 0.0)

    def rows(self) -> list[tuple[str, float]]:
        """Return each phase that has ended with its seconds, and the second step."""
        spans = [span for span in self.phases.spans(None) if span not in self.phases.taken]
        rows = [(span.name, span.end_s - span.start_s) for span in spans if span.end_s is not None]
        return rows + [("second step", step["seconds"]) for step in self.phases.steps if step["step"] == 2]

    def wait(self, limit_s: float) -> int:
        """Wait for the end of the job and return its exit code.

        Raises:
            RaydebugError: it did not end within limit_s seconds.
        """
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired as error:
            raise RaydebugError(
                f"the training did not end within {limit_s:.0f} s",
                cause=f"its log said last: {self._last}",
                fix=f"read {self.log}",
                code="demo.timeout",
                exit_code=Exit.TIMEOUT,
            ) from error
        self._reader.join(timeout=5)
        return code

    def stop(self) -> None:
        """End the job as Ctrl-C does."""
        if self.is_running:
            self.process.send_signal(2)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()

    def _read(self) -> None:
        with self.log.open(encoding="utf-8", errors="replace") as log:
            while True:
                running = self.is_running
                line = log.readline()
                if not line:
                    if not running:
                        return
                    time.sleep(0.1)
                    continue
                self._take(CONTROL.sub("", line))

    def _take(self, line: str) -> None:
        self.phases.take(line, time.monotonic() - self.paused_s)
        if line.strip():
            self._last = line.strip()[:160]
        found = STEP.search(line)
        if found:
            self.steps.append(found.group())


class Demo:
    """The story, step by step; `seconds` collects what each took."""

    def __init__(self, folder: Path, *, cluster: str, interactive: bool, vision: bool = False) -> None:
        self.folder = folder
        self.cluster = cluster
        self.interactive = interactive
        self.vision = vision
        self.seconds: list[tuple[str, float]] = []
        self.shown: dict[str, str] = {}
        self.pauses = 0
        self.attach_s: list[float] = []

    def tell(self) -> None:
        """Run it all.

        Raises:
            RaydebugError: a step did not do what it should.
        """
        install_s = float(os.environ.get("RAYDEBUG_DEMO_INSTALL_S", "0"))
        self.seconds.append(("install", install_s))
        model, data = (("--vision",), ("--images",)) if self.vision else ((), ())
        self.timed("tiny model and data", [("tiny", "model", "model", *model), ("tiny", "dataset", "data", *data)])
        try:
            self.timed("Ray", [("up", *KINDS[self.cluster], "--name", NAME, "--gpus", "1")])
            training = self.train()
        except BaseException:
            raydebug("down", "--name", NAME, may_fail=True)  # an `up` that was cut off may have left something
            raise
        self.timed("down", [("down", "--name", NAME)])
        self.check(training)
        self.summarize(training)

    @property
    def in_actor(self) -> str:
        """The function of the actor that the demo stops in."""
        return (FORWARD if self.vision else UPDATE).partition(":")[2]

    def timed(self, what: str, commands: list[tuple[str, ...]]) -> None:
        """Run commands of raydebug and note the seconds."""
        started = time.monotonic()
        for arguments in commands:
            raydebug(*arguments, cwd=self.folder)
        self.seconds.append((what, time.monotonic() - started))

    def train(self) -> Training:
        """Run the training and look at its pauses until it ends."""
        breaks = (REWARD, f"{FORWARD},max=1") if self.vision else (REWARD, UPDATE)
        command = (*TRAINING, "data.image_key=images") if self.vision else TRAINING
        set_breaks = [word for place in breaks for word in ("--break", place)]
        arguments = ["--name", NAME, "--profile", "debug", *set_breaks, "--", *command]
        show_command(("run", *arguments))
        training = Training(arguments, self.folder)
        try:
            deadline = time.monotonic() + JOB_LIMIT_S
            with render.waiting("the training starts (about a minute): processes, imports, model, vLLM"):
                self.wait_for_pause(training)
            while training.is_running and time.monotonic() < deadline:
                self.look_at_pauses(training)
                time.sleep(0.1)
            code = training.wait(max(1.0, deadline - time.monotonic()))
        except BaseException:
            training.stop()
            raise
        if code != 0:
            raise failed("the training failed", f"exit code {code}; its log said last: {training.last_line}", training)
        return training

    def wait_for_pause(self, training: Training) -> None:
        """Wait for the first pause, with a limit that says what it waited for."""
        deadline = time.monotonic() + PAUSE_LIMIT_S
        while not fetch_pauses(load_cluster(NAME)):
            if not training.is_running or time.monotonic() > deadline:
                raise failed("no breakpoint was reached", f"the log said last: {training.last_line}", training)
            time.sleep(0.2)

    def look_at_pauses(self, training: Training) -> None:
        """Show the first pause of each breakpoint in full, and resume every pause."""
        waiting = [p for p in fetch_pauses(load_cluster(NAME)) if p["state"] == "waiting"]
        if not waiting:
            return
        paused_since = time.monotonic() - max(p["since_s"] or 0.0 for p in waiting)
        for pause in waiting:
            self.look_at(pause)
        training.paused_s += time.monotonic() - paused_since

    def look_at(self, pause: ListedPause) -> None:
        """Attach to one pause."""
        self.pauses += 1
        function = str(pause["function"])
        target = (str(pause["id"]), "--name", NAME)
        if self.interactive and not self.shown:
            self.shown[function] = "(interactive)"
            show_command(("attach", *target))
            process.hand_over([sys.executable, process.SAFE_PATH, "-m", "raydebug", "attach", *target])
            raydebug("attach", *target, "-x", "c", quiet=True, may_fail=True)
            return
        if function in self.shown:
            raydebug("attach", *target, "-x", "c", quiet=True)
            return
        raydebug("paused", "--name", NAME)
        started = time.monotonic()
        looks = [option for command in LOOKS.get(function, ("w", "args")) for option in ("-x", command)]
        self.shown[function] = raydebug("attach", *target, *looks)
        self.attach_s.append(time.monotonic() - started)
        raydebug("attach", *target, "-x", "c")

    def check(self, training: Training) -> None:
        """Hold the run against what the demo promises."""
        promised = {
            "verl's own step:1 and step:2 lines": len(training.steps) >= 2,
            "actor and reward metrics in them": all("actor/" in s and "reward" in s for s in training.steps[:2]),
            "a pause in the reward function": "compute_score" in self.shown,
            "a pause in the actor's update": self.in_actor in self.shown,
            "a real tensor's summary": "torch.Tensor" in self.shown.get(self.in_actor, ""),
        }
        if self.vision:  # without the image in the rollouts it is 0.87
            found = [float(corr) for step in training.steps[:2] for corr in CORRELATION.findall(step)]
            promised["rollouts and actor see the same image"] = len(found) == 2 and min(found) >= 0.99
        missing = [what for what, kept in promised.items() if not kept]
        if missing:
            raise failed("the demo did not show all that it promises", f"missing: {'; '.join(missing)}", training)

    def summarize(self, training: Training) -> None:
        """Print the table."""
        render.out("")
        for step in training.steps[:2]:
            metrics = [
                m
                for m in step.split(" - ")
                if m.startswith(("step:", "actor/pg_loss", "actor/grad_norm", "critic/rewards/mean"))
                or (self.vision and CORRELATION.match(m))
            ]
            render.out("job log: " + "  ".join(metrics))
        rows = [*self.seconds[:3], *training.rows(), *self.seconds[3:]]
        attach = sorted(self.attach_s)[len(self.attach_s) // 2]
        rows += [("training up to step 2", training.training_s), ("attach and look (whole command)", attach)]
        table = [[what, f"{seconds:.1f}"] for what, seconds in rows]
        table += [["pauses seen", str(self.pauses)], ["paused", f"{training.paused_s:.1f}"], ["exit", "0"]]
        title = "nox -s demo (seconds; time paused is not counted in the phases)"
        render.table(["phase", "seconds"], table, title=title)


def show_command(arguments: tuple[str, ...]) -> None:
    """Print a command as the user would type it."""
    render.say("\n$ raydebug " + shlex.join(arguments))


def raydebug(*arguments: str, cwd: Path | None = None, quiet: bool = False, may_fail: bool = False) -> str:
    """Run a command of raydebug as a user does, show it with what it prints, and return that."""
    if not quiet:
        show_command(arguments)
    try:
        said = process.run(
            [sys.executable, process.SAFE_PATH, "-m", "raydebug", *arguments], cwd=cwd, timeout_s=COMMAND_LIMIT_S
        )
    except process.CommandFailed as failure:
        if may_fail:
            return failure.output
        render.say(failure.output)
        raise
    if not quiet:
        render.say(said.rstrip())
    return said


def failed(what: str, cause: str, training: Training) -> RaydebugError:
    """Return the error of a demo that went wrong, with the end of the job's log shown above it."""
    render.say(render.visible("".join(training.log.read_text(errors="replace").splitlines(keepends=True)[-40:])))
    return RaydebugError(what, cause=cause, fix=f"read {training.log}", code="demo.failed")


def main() -> int:
    """Tell the story and return the exit code."""
    parser = argparse.ArgumentParser(prog="nox -s demo --", description=__doc__)
    parser.add_argument("--interactive", action="store_true", help="hand the first pause to you")
    parser.add_argument("--vision", action="store_true", help="a model that takes images (Qwen2.5-VL), and images")
    parser.add_argument("--cluster", choices=KINDS, default="local", help="where Ray runs (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the model, the data and the log")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="raydebug-demo-"))
    if options.cluster == "compose" and os.getuid() == 0:
        folder.chmod(0o777)  # containers never run as root: their user has to write the training's outputs here
    try:
        Demo(folder, cluster=options.cluster, interactive=options.interactive, vision=options.vision).tell()
    except RaydebugError as failure:
        render.error(failure)
        return failure.exit_code
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    if not options.keep:
        import shutil

        shutil.rmtree(folder)
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main())
