"""torch's process groups, as the pinned torch makes them, take the wide timeout, and wait for a paused rank."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway_under_test import open_gateway
from paused_programs import PausedProgram
from raydebug.client.gateway_client import fetch_pauses
from raydebug.console.attach import attach_group
from raydebug.console.selection import Selection
from raydebug.console.session import GatewayAddress
from raydebug.worker.torch_hooks import MAKERS
from runs import wait_for

START_LIMIT_S = 60.0
PROGRAM = """
import datetime, torch.distributed as dist
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1,
                        timeout=datetime.timedelta(seconds=600))
group = dist.distributed_c10d._get_default_group()._get_backend(__import__("torch").device("cpu"))
print(group.options._timeout.total_seconds())
from raydebug.worker import torch_hooks
print(torch_hooks.nearest_watchdog())
"""


def test_process_group_is_widened():
    """Contract (torch 2.13): below a cluster init_process_group(timeout=600 s) makes a group that waits a day."""
    variables = {"RAYDEBUG_GATEWAY": "127.0.0.1:1", "RAYDEBUG_GROUP_TIMEOUT_S": "86400"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **variables}, capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert done.stdout == "86400.0\n{'name': 'torch process group', 'after_s': 86400.0}\n", done.stderr


def test_every_maker_of_groups_is_known():
    """Contract (torch 2.13): the functions that make process groups and take a timeout of their own are these."""
    from torch.distributed import distributed_c10d

    # new_subgroups and its kind hand theirs on to new_group; the underscored ones are called by these with one.
    takes = [
        name for name, value in vars(distributed_c10d).items()
        if inspect.isfunction(value) and "timeout" in inspect.signature(value).parameters
        and "group" in name and not name.startswith("_") and "subgroups" not in name
    ]  # fmt: skip
    assert sorted(takes) == sorted(MAKERS)


WAITS = """import datetime, os, time, torch, torch.distributed as dist
rank, limit = int(os.environ["RANK"]), datetime.timedelta(seconds=2)
dist.init_process_group("gloo", init_method="file://" + os.environ["MEETING"], rank=rank, world_size=2, timeout=limit)
total = torch.ones(1)
if rank == 1:
    breakpoint()
print("waits", flush=True)
dist.all_reduce(total)
print("together", total.item(), flush=True)
done = os.environ["MEETING"] + ".done"
if rank == 0:
    open(done, "w").close()
while not os.path.exists(done):  # one that exits first may take back what the other has not read yet
    time.sleep(0.02)
dist.destroy_process_group()  # at exit, a thread of gloo that still runs would end the process with SIGABRT
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("widened", [True, False], ids=["widened", "as it comes"])
def test_rank_that_waits_for_a_paused_one(tmp_path: Path, widened: bool) -> None:
    """A group with a limit of 2 s outlives a pause of 5 s where `run` has widened it, and ends at it where not."""
    variables = {"MEETING": str(tmp_path / "meeting"), **({"RAYDEBUG_GROUP_TIMEOUT_S": "86400"} if widened else {})}
    with open_gateway(tmp_path) as gateway:
        ranks = []
        for rank in ("0", "1"):
            (tmp_path / rank).mkdir()
            ranks.append(PausedProgram(gateway, tmp_path / rank, WAITS, START_LIMIT_S, RANK=rank, **variables))
        waits, pauses = ranks
        try:
            assert pauses.pause["watchdog"] == {"name": "torch process group", "after_s": 86400.0} if widened else True
            wait_for(lambda: "waits" in waits.said, "the other rank to reach the collective", START_LIMIT_S)
            if widened:
                time.sleep(5)
                assert waits.process.poll() is None, waits.complained
            else:
                assert waits.process.wait(START_LIMIT_S) != 0, "the pause lasts, and has ended the other rank"
            console = GatewayAddress(gateway.gateway_host, gateway.gateway_port, gateway.token)
            attach_group(console, Selection(ranks=frozenset({1})), lambda: fetch_pauses(gateway), commands=["c"])  # type: ignore[arg-type]
            codes = [one.process.wait(START_LIMIT_S) for one in ranks]
        finally:
            for one in ranks:
                one.close()
    assert (codes == [0, 0]) == widened, waits.complained + pauses.complained
    assert ("together 2.0" in waits.said) == widened
    assert ("Timed out waiting 2000ms" in waits.complained) != widened, waits.complained
