"""`attach --pid` while a process waits for its GPU, and the time limits of NCCL while one is paused."""

from __future__ import annotations

import time

import pytest

from gpu_programs import START_LIMIT_S, ended, wait_for

pytestmark = pytest.mark.timeout(240)

HEAD = """
import datetime, os, time, torch, torch.distributed as dist
from raydebug.worker import control_channel
control_channel.open_channel()
x = torch.ones(4, device="cuda")
CYCLES_A_SECOND = 2e9  # about what the clock of a Hopper GPU makes under load
def work_ahead(seconds):
    torch.cuda._sleep(int(seconds * CYCLES_A_SECOND))
def join(**options):
    dist.init_process_group("nccl", init_method="file://" + os.environ["MEETING"], rank=0, world_size=1,
                            device_id=torch.device("cuda:0"), **options)
    dist.all_reduce(x)
    torch.cuda.synchronize()
"""
SYNCHRONIZES = """
def wait():
    work_ahead(8)
    print("ready", flush=True)
    torch.cuda.synchronize()
    after = 1
    return after
print("came back", wait(), flush=True)
"""
COLLECTIVE = """
def wait():
    work_ahead(8)
    work = dist.all_reduce(x, async_op=True)
    print("ready", flush=True)
    work.wait()
    total = x.sum().item()
    return total
join()
print("came back", wait(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("body", "blocking", "path"),
    [
        (SYNCHRONIZES, "0", "torch/cuda/__init__.py"),  # the first line of Python after the wait is torch's own
        (COLLECTIVE, "0", "job.py"),
        (COLLECTIVE, "1", "job.py"),
    ],
    ids=["synchronize", "nccl", "nccl with blocking wait"],
)
def test_attach_to_a_process_that_waits_for_its_gpu(gateway, serve, look, tmp_path, body, blocking, path):
    """`attach --pid` to a process inside cudaDeviceSynchronize or an NCCL collective stops it when that returns."""
    variables = {"RAYDEBUG_JOB": "j1", "MEETING": str(tmp_path / "meeting"), "TORCH_NCCL_BLOCKING_WAIT": blocking}
    program = serve(HEAD + body, **variables)
    wait_for(program, "ready")
    said = look(f"pid:{program.process.pid}", "w", *(["u"] if "torch" in path else []), "tensor x", "c")
    assert path in said
    assert " wait\n" in said
    assert "float32  cuda:0\n  min 1  max 1" in said
    code, out = ended(program)
    assert code == 0, program.complained
    assert "came back" in out


# With one GPU no second rank can be missing (NCCL refuses two ranks on one GPU): the collective waits for work ahead.
LIMITS = """
join(timeout=datetime.timedelta(seconds=5))
work_ahead(20)
work = dist.all_reduce(x, async_op=True)
breakpoint()
work.wait()
torch.cuda.synchronize()
print("together", x.tolist(), flush=True)
dist.destroy_process_group()
"""


def test_widened_limits(serve, look, tmp_path):
    """With the limits that `run` sets, a collective outlasts its own limit of 5 s while the process is paused."""
    variables = {"RAYDEBUG_GROUP_TIMEOUT_S": "86400", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "86400"}
    program = serve(HEAD + LIMITS, MEETING=str(tmp_path / "meeting"), **variables)
    assert program.pause["watchdog"]["after_s"] == 86400
    time.sleep(25)
    assert program.process.poll() is None, program.complained
    look(program.id, "c")
    assert ended(program) == (0, "together [1.0, 1.0, 1.0, 1.0]\n")


def test_narrow_limits(serve, tmp_path):
    """Without them torch's watchdog ends the paused process after those 5 s: what `run` prevents."""
    program = serve(HEAD + LIMITS, MEETING=str(tmp_path / "meeting"), TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC="10")
    assert program.pause
    assert program.process.wait(START_LIMIT_S) != 0
    assert "Watchdog caught collective operation timeout" in program.complained


HEARTBEAT = """
join()
breakpoint()
print("went on", flush=True)
dist.destroy_process_group()
"""


def test_heartbeat_while_paused(serve, look, tmp_path):
    """A paused process without a collective in flight outlives a heartbeat limit of 10 s: NCCL's threads run on."""
    program = serve(HEAD + HEARTBEAT, MEETING=str(tmp_path / "meeting"), TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC="10")
    assert program.pause
    time.sleep(30)
    assert program.process.poll() is None, program.complained
    look(program.id, "c")
    assert ended(program) == (0, "went on\n")
