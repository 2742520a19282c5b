"""`--stop-on nonfinite` with torch alone, and both kinds of tripwires in a GRPO training that diverges."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from demo import TRAINING
from gateway_under_test import GatewayUnderTest, open_gateway
from paused_programs import PausedProgram
from raydebug.cluster.state import Cluster
from raydebug.console.attach import attach_pause
from raydebug.console.session import GatewayAddress
from raydebug.protocol.variables import STOP_ON
from raydebug.tiny.dataset import build_dataset
from raydebug.tiny.model import build_model
from raydebug.trainers.registry import recognise
from runs import Run, attach, local_cluster, private_state, raydebug, starting_runs

START_LIMIT_S = 180.0  # a hang guard: importing torch takes long on a busy machine
TRAINING_LIMIT_S = 900.0  # a hang guard, as in test_two_ranks.py

# An FSDP2 model of one rank whose second block divides by zero in step 2, in its forward or only in its gradient.
PROGRAM = """
import os, torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act = nn.Linear(4, 4), nn.ReLU(inplace=True)

    def forward(self, hidden, by):
        return {"hidden": self.act(self.up(hidden)) / by, "note": "text"}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.act = nn.ModuleList([Block(), Block()]), nn.Identity()

    def forward(self, hidden, by):
        for number, block in enumerate(self.blocks):
            hidden = block(hidden, by if number == 1 else 1.0)["hidden"]
        return hidden

class Trainer:
    def step(self, by):
        hidden = self.model(torch.ones(2, 4), by)
        loss = torch.sqrt(hidden.sum() * (0.0 if MODE == "gradient" and by == 0 else 1.0))
        loss.backward()
        self.optimizer.step()

MODE = os.environ["MODE"]
trainer = Trainer()
trainer.model = Model()
for parameter in trainer.model.parameters():
    nn.init.constant_(parameter, 0.1)
if MODE != "one process":
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    mesh = dist.init_device_mesh("cpu", (1,))
    for block in trainer.model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(trainer.model, mesh=mesh)
if MODE == "inference":
    with torch.no_grad():
        trainer.model(torch.ones(2, 4), torch.zeros(()))
else:
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.0)
    for global_steps in (1, 2, 3):
        bad = global_steps > 1 and MODE != "healthy"
        trainer.model.act(torch.full((4,), 3e38))  # finite, but its sum is not
        trainer.step(0.0 if bad and MODE == "gradient" else torch.zeros(()) if bad else 1.0)
print("finished", flush=True)
"""


def look(gateway: GatewayUnderTest, pause_id: str, capsys: pytest.CaptureFixture[str], *commands: str) -> str:
    """Run debugger commands at a pause and return what they print."""
    console = GatewayAddress(gateway.gateway_host, gateway.gateway_port, gateway.token)
    attach_pause(console, pause_id, cluster="test", commands=commands)
    said = capsys.readouterr()
    assert not said.err, said
    return said.out


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("mode", "text", "commands", "shown"),
    [
        ("forward", "rank 0: output['hidden'] of blocks.1 (FSDPBlock): 8 infinite of 8 values; `p output['hidden']`",
         ("p output['hidden'].isinf().sum().item()", "p inputs[0].shape"),
         ["8", "torch.Size([2, 4])"]),
        ("one process", "rank 0: output['hidden'] of blocks.1 (Block): 8 infinite of 8 values; `p output['hidden']`",
         ("p output['note']", "p type(module).__name__"), ["'text'", "'Block'"]),
    ],
    ids=["fsdp2", "one process"],
)  # fmt: skip
def test_first_output_that_is_not_finite(
    mode: str, text: str, commands: tuple[str, ...], shown: list[str], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A module with an infinite output pauses its process once, with the tensor in the frame; then it continues."""
    with open_gateway(tmp_path) as gateway:
        program = PausedProgram(gateway, tmp_path, PROGRAM, START_LIMIT_S, MODE=mode, **{STOP_ON: "nonfinite"})
        try:
            pause = program.pause
            assert (pause["kind"], pause["where"], pause["function"]) == ("tripwire", "nonfinite", "_check_output")
            assert pause["tripwire"] == {"text": text, "history": []}
            assert pause["step"] == 2
            printed = look(gateway, pause["id"], capsys, *commands, "c")
            assert [line for line in printed.splitlines() if line in shown] == shown, printed
            assert program.process.wait(START_LIMIT_S) == 0, program.complained
            assert program.said == "finished\n"
            assert program.complained.count("paused (nonfinite: ") == 1
        finally:
            program.close()


@pytest.mark.timeout(600)
def test_first_gradient_that_is_not_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If every output is finite and a gradient is not, the process pauses in the backward pass."""
    program_text = PROGRAM.replace("/ by,", "* 1.0,")
    with open_gateway(tmp_path) as gateway:
        program = PausedProgram(
            gateway, tmp_path, program_text, START_LIMIT_S, MODE="gradient", **{STOP_ON: "nonfinite"}
        )
        try:
            pause = program.pause
            assert pause["tripwire"]["text"] == (
                "rank 0: gradient of output['hidden'] of blocks.1 (FSDPBlock): 8 NaN of 8 values; `p gradient`"
            )
            printed = look(gateway, pause["id"], capsys, "w", "p gradient.isnan().sum().item()", "c")
            assert "8" in printed.splitlines()
            assert "loss.backward()" in printed, "the code that called backward is among the callers"
            assert program.process.wait(START_LIMIT_S) == 0, program.complained
        finally:
            program.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["healthy", "inference"])
def test_nothing_to_stop_at(mode: str, tmp_path: Path) -> None:
    """A finite training with in-place modules, and a process that does not train, run to their end."""
    with open_gateway(tmp_path) as gateway:
        program = PausedProgram(gateway, tmp_path, PROGRAM, START_LIMIT_S, MODE=mode, **{STOP_ON: "nonfinite"})
        try:
            assert program.process.wait(START_LIMIT_S) == 0, program.complained
            assert program.said == "finished\n"
            assert "raydebug" not in program.complained
        finally:
            program.close()


HOSTILE = """
import torch
from torch import nn

class Output(dict):
    def items(self):
        raise RuntimeError("mine")

class Model(nn.Module):
    def forward(self, hidden):
        return Output(hidden=hidden)

optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.0)
half_made = nn.Module.__new__(Model)
for _ in range(2):
    Model()(torch.ones(1))
print("finished", flush=True)
"""


@pytest.mark.timeout(600)
def test_a_container_that_raises(tmp_path: Path) -> None:
    """An output that raises when it is read ends the checks of its process, with one line in the log, not the job."""
    with open_gateway(tmp_path) as gateway:
        program = PausedProgram(gateway, tmp_path, HOSTILE, START_LIMIT_S, **{STOP_ON: "nonfinite"})
        try:
            assert program.process.wait(START_LIMIT_S) == 0, program.complained
            assert program.said == "finished\n"
            assert program.complained == "raydebug: --stop-on nonfinite is turned off: RuntimeError: mine\n"
        finally:
            program.close()


def test_verl_logs_its_metrics_there() -> None:
    """Contract (verl 0.9.1): Tracking.log gets the metrics of a step as `data` and its number as `step`."""
    from verl.utils import tracking

    program = recognise(["python", "-m", "verl.trainer.main_ppo"])
    assert program is not None
    module, function = program.trainer.step_loggers(program)[0].split(":")
    assert (module, function) == (tracking.__name__, "Tracking.log(step,data)")
    assert [*inspect.signature(tracking.Tracking.log).parameters] == ["self", "data", "step", "backend"]


# verl


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A local cluster with a logical GPU."""
    with private_state(), local_cluster("tripwires", gpus=1) as found:
        yield found


@pytest.fixture
def diverging(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start the training of a tiny model whose first update, at a learning rate of 1e30, ruins it."""
    build_model(tmp_path / "model")
    build_dataset(tmp_path / "data")
    # Two updates in the only step: the second one meets what the first one has done.
    settings = ("actor_rollout_ref.actor.optim.lr=1e30", "actor_rollout_ref.actor.ppo_epochs=2",
                "trainer.total_training_steps=1", "data.max_response_length=8")  # fmt: skip
    with starting_runs(cluster, cwd=tmp_path) as start:
        yield lambda *options: start("--profile", "debug", *options, "--", *TRAINING, *settings)


@pytest.mark.timeout(2400)
def test_a_training_that_diverges(diverging: Callable[..., Run], cluster: Cluster) -> None:
    """The rank pauses at its first module that is not finite, the trainer at the end of the step, by the metric."""
    metric = "nan(actor/pg_loss)"
    job = diverging("--stop-on", "nonfinite", "--stop-when", metric, "--stop-when", "nan(actor/gradnorm)")
    (rank,) = job.pauses(1, TRAINING_LIMIT_S)
    assert "metric 'actor/gradnorm' is unknown; similar: actor/grad_norm; step 1 logs all names" in job.text
    assert (rank["kind"], rank["rank"], rank["step"]) == ("tripwire", 0, 1)
    assert rank["actor"].startswith("WorkerDict")
    assert re.fullmatch(
        r"rank 0: output\S* of \S*layers\.0\S* \(\w+\): [\w ]+ of \d+ values; `p output\S*`", rank["tripwire"]["text"]
    ), rank["tripwire"]
    place = rank["tripwire"]["text"].rpartition("`p ")[2].rstrip("`")
    tensor = f"p {place}.isfinite().all().item()"
    printed = attach(cluster, rank["id"], "p type(module).__name__", tensor, "w").stdout
    assert "False" in printed.splitlines(), printed
    assert "forward_backward_batch" in printed
    attach(cluster, rank["id"], "c")

    (trainer,) = job.pauses(1, TRAINING_LIMIT_S)
    assert (trainer["kind"], trainer["where"], trainer["step"]) == ("tripwire", metric, 1)
    assert trainer["actor"].startswith("TaskRunner")
    assert trainer["function"].endswith("fit")
    assert trainer["tripwire"] == {
        "text": "actor/pg_loss is nan at step 1",
        "history": [{"metric": "actor/pg_loss", "steps": [1], "values": ["nan"]}],
    }
    listed = raydebug("paused", "--name", cluster.name)
    assert "nan(actor/pg_loss): actor/pg_loss is nan" in " ".join(listed.stdout.split()), listed.stdout
    assert f"{trainer['id']}: actor/pg_loss of step 1: nan" in listed.stderr
    assert attach(cluster, trainer["id"], "p metrics['actor/pg_loss']").stdout.strip() == "nan"
    attach(cluster, trainer["id"], "c")
    text = job.end(timeout_s=TRAINING_LIMIT_S)
    assert "has no metric 'actor/gradnorm', so it trips only if a later step has one; its metrics, the" in text
    assert "actor/pg_loss of step 1: nan" in text
    assert "succeeded (2 pauses)" in text
