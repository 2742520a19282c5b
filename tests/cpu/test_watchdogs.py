"""torch's process groups, as the pinned torch makes them, take the wide timeout."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import datetime, torch.distributed as dist
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1,
                        timeout=datetime.timedelta(seconds=600))
group = dist.distributed_c10d._get_default_group()._get_backend(__import__("torch").device("cpu"))
print(group.options._timeout.total_seconds())
from raydebug.worker import watchdogs
print(watchdogs.nearest())
"""


def test_process_group_is_widened():
    """Contract (torch 2.13): below a cluster init_process_group(timeout=600 s) makes a group that waits a day."""
    variables = {"RAYDEBUG_GATEWAY": "127.0.0.1:1", "RAYDEBUG_GROUP_TIMEOUT_S": "86400"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **variables}, capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert done.stdout == "86400.0\n{'name': 'torch process group', 'after_s': 86400.0}\n", done.stderr
