"""Plants stalls, one after the other, in a real tiny verl 0.9 training on this CPU; prints what `--hang-after` says.

`python tests/support/planted_trainings.py [NAME...]` in the flavour cpu; without names all of them: about 20 minutes on
two cores. It returns 1 if a stall was not named within LATE_S after the limit, or something healthy was blamed.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from demo import TRAINING
from raydebug.profile.apply_profile import apply_profile
from raydebug.tiny.dataset import build_dataset
from raydebug.tiny.model import build_model
from runs import JOBS, Run, local_cluster, private_state, starting_runs

LIMIT_S, LATE_S = 30.0, 20.0
START_S, STEP_S = 420.0, 240.0  # hang guards
PLANTS = JOBS / "hangs"
MICRO_BATCHES = (  # the profile makes them as large as its batch of 4
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    *(f"actor_rollout_ref.{part}.log_prob_micro_batch_size_per_gpu" for part in ("rollout", "ref")),
)


class Plant(NamedTuple):
    """A stall, or healthy work of LIMIT_S or more.

    Args:
        who: the process that is to be named; empty if nothing may be reported.
        words: of the training that the report has to have.
        ranks: of the training.
        is_last: it does not end: nothing can follow it.
    """

    name: str
    who: str
    words: str
    ranks: int = 1
    is_last: bool = False


STALLS = (
    Plant("tool server", "AgentLoopWorker", r"tool search .*http://127\.0\.0\.1:\d+/search(?!\?)"),
    Plant("endless reward", "RewardLoopWorker", r"4 samples are waiting for the reward[\s\S]*compute_score"),
    Plant("judge", "RewardLoopWorker", r"compute_score.*http://127\.0\.0\.1:\d+/judge(?!\?)"),
    Plant("regex", "RewardLoopWorker", r"compute_score"),
    Plant("engine request", "vLLMHttpServer", r"4 requests .*have no answer"),
    Plant("full buffer", "AgentLoopWorker", r"4 samples are storing the result"),
    Plant("lost uid", "TaskRunner", r"4 samples are lost, no agent worker has it"),
    Plant("trainer gone", "VLLM::EngineCore", r"weight sync has not ended"),
    Plant("skipped sync", "rank 1", r"rank 1", ranks=2, is_last=True),
)
HEALTHY = (  # a step that takes longer than the limit, in which work goes on
    Plant("long reward", "", ""),  # one after the other, as in a validation
    Plant("long generation", "", ""),  # some seconds for each token
    Plant("long update", "", ""),  # at ever other lines, as a compilation or a checkpoint
)


class Server(http.server.BaseHTTPRequestHandler):
    """A judge that is busy for ever, and a tool's server that does not answer while its stall is on."""

    planted: Path

    def do_GET(self) -> None:
        """Answer."""
        while self.path.startswith("/search") and self.planted.read_text() == "tool server":
            time.sleep(0.3)
        self.send_response(429 if self.path.startswith("/judge") else 200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@contextlib.contextmanager
def training(ranks: int, folder: Path) -> Iterator[tuple[Run, Path]]:
    """Run a training of many steps; yield it and the file that says which stall is on."""
    build_model(folder / "model")
    build_dataset(folder / "data")
    (folder / "patch").mkdir()
    (folder / "patch" / "sitecustomize.py").write_text((PLANTS / "planted_verl.py").read_text())
    for name in ("score", "tool"):
        (folder / f"{name}.py").write_text((PLANTS / f"planted_{name}.py").read_text())
    planted = Server.planted = folder / "planted"
    planted.write_text("")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    variables = {"PYTHONPATH": f"{folder / 'patch'}:{os.environ.get('PYTHONPATH', '')}", "PLANTED": str(planted),
                 "SERVER": f"http://127.0.0.1:{server.server_port}", "LONG_S": "10"}  # fmt: skip
    command = [*TRAINING[:-1], "reward.custom_reward_function.path=score.py"]
    environ = {**os.environ, "VERL_PLATFORM": "cpu"}
    made = apply_profile(command, profile="debug", environ=environ, folder=folder, search=sys.path).argv
    more = [f"+ray_kwargs.ray_init.runtime_env.env_vars.{name}='{value}'" for name, value in variables.items()]
    rollout = "actor_rollout_ref.rollout"
    more += [f"{rollout}.agent.default_agent_loop=tool_agent", f"{rollout}.multi_turn.function_tool_path=tool.py",
             "trainer.total_training_steps=1000", "trainer.total_epochs=1000", f"trainer.n_gpus_per_node={ranks}",
             *(f"{key}={4 // ranks}" for key in MICRO_BATCHES),
             "data.max_response_length=8", f"{rollout}.multi_turn.max_assistant_turns=2"]  # fmt: skip
    watch = ("--hang-after", f"{LIMIT_S:g}")
    with local_cluster("planted", gpus=ranks) as cluster, starting_runs(cluster, cwd=folder) as start:
        yield start(*watch, "--", *made, *more, env=environ), planted
        server.shutdown()


def steps(run: Run) -> int:
    """Return how many steps have ended."""
    return len(re.findall(r"\bstep:\d+ - ", run.text))


def wait_for_step(run: Run, timeout_s: float) -> None:
    """Wait until one more step has ended."""
    before, deadline = steps(run), time.monotonic() + timeout_s
    while steps(run) == before:
        if run.process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"no step ended within {timeout_s:g} s\n{run.text[-5000:]}")
        time.sleep(0.5)


def plant(one: Plant, run: Run, planted: Path) -> tuple[bool, str]:
    """Plant a stall; return whether it was named in time, and what was said of it."""
    wait_for_step(run, STEP_S)
    at = len(run.text)
    planted.write_text(one.name)
    began, limit_s = time.monotonic(), LIMIT_S + LATE_S + 30  # what goes before the stall in this step
    while "hangs: " not in (said := run.text[at:]) and time.monotonic() - began < limit_s:
        time.sleep(0.5)
    after_s = time.monotonic() - began
    time.sleep(2)
    report = re.findall(r"^(?:job \S+ hangs|verdict|longest call|training).*", run.text[at:], re.M)
    if saved := re.search(r"stacks: raydebug stacks --from (\S+)", run.text[at:]):
        words = json.loads(Path(saved[1]).read_text())["training"]
        report.append(json.dumps(words)[:3000])
    planted.write_text("")
    if not one.who:
        return "hangs: " not in said, f"{after_s:.0f} s, {report or 'nothing reported'}"
    text = "\n      ".join(report)
    is_right = bool(report) and one.who in text and re.search(one.words, text) is not None
    return is_right, f"{after_s:.0f} s\n      {text}"


def main() -> int:
    """Plant those that are named, or all."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster ends in any case
    plants = {one.name: one for one in (*STALLS, *HEALTHY)}
    chosen = [plants[name] for name in sys.argv[1:] or plants]
    wrong = 0
    for ranks in (1, 2):
        here = sorted((one for one in chosen if one.ranks == ranks), key=lambda one: one.is_last)
        if not here:
            continue
        with private_state(), tempfile.TemporaryDirectory() as folder, training(ranks, Path(folder)) as (run, planted):
            wait_for_step(run, START_S)
            blamed = re.findall(r"^job .* hangs: .*|^verdict.*", run.text, re.M)
            print(f"reported during the start: {blamed or 'nothing'}", flush=True)
            for one in here:
                is_right, said = plant(one, run, planted)
                wrong += not is_right
                print(f"{'right' if is_right else 'WRONG'}  {one.name}: {said}", flush=True)
    print(f"{len(chosen) - wrong} of {len(chosen)} right")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
