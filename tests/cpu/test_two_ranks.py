"""A real verl GRPO training with two ranks on this CPU: FSDP2 over gloo, a vLLM engine for each rank."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from demo import TRAINING
from raydebug.cluster.state import Cluster
from raydebug.tiny.dataset import build_dataset
from raydebug.tiny.model import build_model
from runs import Run, attach, local_cluster, private_state, raydebug, starting_runs

START_LIMIT_S = 600.0  # a hang guard: ten processes import torch, verl and vLLM on as little as two cores
STEP_LIMIT_S = 240.0
LONG_S = 610.0
LONG = "RAYDEBUG_TEST_LONG"

ENGINE = "vllm.v1.engine.core:EngineCore.step"  # vllm 0.28
UPDATE = "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.optimizer_step"  # verl 0.9.1; its caller has the batch
WEIGHT = "self.module.model.embed_tokens.weight"
SMALL = ("trainer.n_gpus_per_node=2", "trainer.total_training_steps=1", "data.max_response_length=8")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A local cluster with two logical GPUs."""
    with private_state(), local_cluster("ranks", gpus=2) as found:
        yield found


@pytest.fixture
def training(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[[], Run]]:
    """Start the training of a tiny model; what still runs of it at the end is stopped."""
    build_model(tmp_path / "model")
    build_dataset(tmp_path / "data")
    with starting_runs(cluster, cwd=tmp_path) as start:
        stops = ("--break", f"{ENGINE},once", "--break", UPDATE)
        yield lambda: start("--profile", "debug", *stops, "--", *TRAINING, *SMALL)


SKIPS = """
import importlib.util, os, sys

class Skips:
    def find_spec(self, name, path=None, target=None):
        if name != "verl.workers.engine.fsdp.transformer_impl":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def load_and_patch(module):
            load(module)
            patch(module.FSDPEngine)
        spec.loader.exec_module = load_and_patch
        return spec

def patch(engine):
    original = engine.forward_backward_batch
    def forward_backward_batch(self, *args, **kwargs):
        from torch import distributed
        all_reduce = distributed.all_reduce
        distributed.all_reduce = lambda *_, **__: setattr(distributed, "all_reduce", all_reduce)
        engine.forward_backward_batch = original
        return original(self, *args, **kwargs)
    engine.forward_backward_batch = forward_backward_batch

if os.environ.get("RANK") == "1":
    sys.meta_path.insert(0, Skips())
"""


@pytest.mark.timeout(1800)
def test_rank_that_skips_a_collective(cluster: Cluster, tmp_path: Path) -> None:
    """Rank 1 leaves out one all_reduce of the actor: `stacks` names it, its line and the collective while both hang.

    With --hang-after the run folder has stacks and verdict, and the job is stopped.
    """
    build_model(tmp_path / "model")
    build_dataset(tmp_path / "data")
    (tmp_path / "patch").mkdir()
    (tmp_path / "patch" / "sitecustomize.py").write_text(SKIPS)
    path = f"+ray_kwargs.ray_init.runtime_env.env_vars.PYTHONPATH={tmp_path / 'patch'}"
    watch = ("--hang-after", "60", "--on-hang", "stop")
    with starting_runs(cluster, cwd=tmp_path) as start:
        job = start("--profile", "debug", *watch, "--", *TRAINING, *SMALL, path)
        verdict: dict[str, Any] = {}
        deadline = time.monotonic() + START_LIMIT_S
        while verdict.get("kind") not in ("missing-rank", "collective-mismatch"):
            assert time.monotonic() < deadline, f"{verdict}\n{job.text}"
            assert job.process.poll() is None, job.text
            time.sleep(5)
            done = raydebug("stacks", "--json", "--samples", "2", "--name", cluster.name)
            verdict = json.loads(done.stdout)["verdict"] if done.returncode == 0 else {}
        assert (verdict["ranks"], verdict["certainty"]) == ([1], "certain"), verdict
        assert re.search(r"rank 0 (calls|waits in collective \d+ of group .*,) all_reduce \[\d*\] \w+", verdict["text"])
        print(verdict["text"])
        assert "verl/workers/engine/fsdp/transformer_impl.py:" in verdict["text"], verdict
        text = job.end(code=124, timeout_s=STEP_LIMIT_S)
    assert re.search(r"hangs: no step has ended for \d+ s", text)
    (saved,) = re.findall(r"stacks: raydebug stacks --from (\S+)", text)
    assert json.loads(Path(saved).read_text())["verdict"]["ranks"] == [1]


@pytest.mark.timeout(1800 + 2 * LONG_S)
@pytest.mark.parametrize(
    "pause_s",
    [
        pytest.param(3.0, id="short"),
        pytest.param(
            LONG_S,
            id="ten minutes",
            marks=pytest.mark.skipif(
                os.environ.get(LONG) != "1",
                reason=f"takes over 20 minutes: {LONG}=1 nox -s cpu -- tests/cpu/test_two_ranks.py",
            ),
        ),
    ],
)
def test_two_ranks(training: Callable[[], Run], cluster: Cluster, pause_s: float) -> None:
    """Both engines and both ranks stop, are looked at and compared, and go on one after the other; the step completes.

    Both ranks are paused for `pause_s`; then one of them waits for the other in a collective, for as long again.
    """
    job = training()
    look_at_engines(job, cluster)
    ranks = job.pauses(2, START_LIMIT_S)
    look_at_ranks(ranks)
    compare_ranks(cluster)
    time.sleep(pause_s)
    first, last = sorted(ranks, key=lambda pause: pause["rank"])
    assert [pause["id"] for pause in job.listed()] == [pause["id"] for pause in ranks]
    attach(cluster, first["id"], "c")
    time.sleep(pause_s)
    assert [pause["id"] for pause in job.listed()] == [last["id"]], "rank 0 waits for rank 1, and neither is ended"
    assert job.process.poll() is None, job.text
    attach(cluster, last["id"], "c")
    text = job.end(timeout_s=STEP_LIMIT_S)
    assert re.search(r"\bstep:1 - .*actor/grad_norm:0\.\d*[1-9]", text), text
    assert "succeeded (4 pauses)" in text


def look_at_engines(job: Run, cluster: Cluster) -> None:
    """vLLM's engine, a child of its server's actor, stops in each of the two, says whose child it is, and goes on."""
    engines = job.pauses(2, START_LIMIT_S)
    for pause in engines:
        assert (pause["function"], pause["where"]) == ("EngineCore.step", ENGINE)
        assert pause["actor"].startswith("vLLMHttpServer")
        assert None not in [pause[name] for name in ("actor_id", "worker_id", "node_id", "job_id", "job")]
        parent = Path(f"/proc/{pause['pid']}/stat").read_text().rpartition(")")[2].split()[1]
        assert pause["child_of"] == int(parent)
        waiting = attach(cluster, pause["id"], "p self.scheduler.get_num_unfinished_requests()").stdout
        assert int(waiting) > 0
    assert len({pause["actor_id"] for pause in engines}) == 2
    for pause in engines:
        attach(cluster, pause["id"], "c")


def look_at_ranks(ranks: list[dict[str, Any]]) -> None:
    """Each rank is paused in the update of step 1, and the time limit of its process group is a day."""
    assert sorted(pause["rank"] for pause in ranks) == [0, 1]
    for pause in ranks:
        assert (pause["function"], pause["step"], pause["child_of"]) == ("FSDPEngine.optimizer_step", 1, None)
        assert pause["actor"].startswith("WorkerDict")
        assert pause["watchdog"] == {"name": "torch process group", "after_s": 86400.0}


def compare_ranks(cluster: Cluster) -> None:
    """A parameter's norm comes from both shards, and is what torch itself computes; the batches differ."""
    group = "torch.distributed.distributed_c10d._get_default_group()._get_backend(torch.device('cpu'))"
    commands = (f"diff {WEIGHT}", f"diff {WEIGHT}.full_tensor().norm().item()", f"diff {WEIGHT}.grad", "@* u",
                'diff data["responses"]', 'diff data["global_steps"]', f"diff {group}.options._timeout")  # fmt: skip
    options = [option for command in commands for option in ("-x", command)]
    done = raydebug("attach", "--ranks", "0,1", "--name", cluster.name, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    weight, norm, gradient, frames, responses, rest = sections(done.stdout)
    assert "[384x64]  float32  cpu  shard 0 of 2 [192x64] by S(0)  norm " in weight[0]
    assert "[384x64]  float32  cpu  shard 1 of 2 [192x64] by S(0)  norm " in weight[1]
    together = re.fullmatch(r"ranks 0, 1: ([\d.]+)  \(all equal\)", norm[0])
    whole = re.match(r"  the whole, from its 2 shards: norm ([\d.]+)  min ", weight[2])
    assert together is not None
    assert whole is not None
    assert math.isclose(float(together[1]), float(whole[1]), rel_tol=1e-5)  # torch sums in float32
    assert len(gradient) == 3
    assert all("-> " in line or "> " in line for line in frames)
    assert [line.partition(":")[0] for line in responses[:2]] == ["rank 0", "rank 1"]
    assert re.search(
        r"  rank 1 against rank 0: (max difference \d+, \d+ of \d+ elements|rows of other sizes)", responses[2]
    )
    assert rest == ["ranks 0, 1: LinkedList([1, 1])  (all equal)",
                    "ranks 0, 1: datetime.timedelta(days=1)  (all equal)"]  # fmt: skip


def sections(text: str) -> list[list[str]]:
    """Split what the comparison printed: three lines, one, three, the new frames, three, and the rest."""
    lines = text.splitlines()
    frames = [line for line in lines if line.startswith("[rank ")]
    told = [line for line in lines if not line.startswith("[rank ")]
    return [told[:3], told[3:4], told[4:7], frames, told[7:10], told[10:]]
