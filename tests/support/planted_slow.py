"""Plants slow spots in one rank of a small training (gloo, CPU), and healthy trainings; prints who is named, and why.

`python tests/support/planted_slow.py [NAME...] [--load N]` in the flavour cpu; without names all of them. It returns 1
if a slow rank was not named, or a healthy one was. `--load N` keeps N processes busy beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gateway_under_test import GatewayUnderTest, open_gateway
from raydebug.client.gateway_client import ask_processes
from raydebug.protocol.questions import COLLECTIVE_TIMES
from raydebug.stacks.slow_ranks import SlowRank, find_slow, find_teams
from raydebug.stacks.slow_watch import find_cause

START_S = 240.0  # two ranks import torch, on a loaded machine
STEPS = 25


class Plant(NamedTuple):
    """What one rank does in each step that the others do not.

    Args:
        ranks: of the training.
        slow: the rank; None in a healthy training.
        words: of the cause; one of them has to be seen.
    """

    name: str
    ranks: int = 2
    slow: int | None = 1
    words: tuple[str, ...] = ()


PLANTS = (
    Plant("sleep", 2, 0, ("time.sleep",)),
    Plant("sleep", 2, 1, ("time.sleep",)),
    Plant("sleep", 3, 2, ("time.sleep",)),
    Plant("backward", 2, 0, ("backward",)),
    Plant("backward", 2, 1, ("backward",)),
    Plant("collect", 2, 1, ("garbage collector",)),
    Plant("loader", 2, 1, ("load_batch",)),
    Plant("page_cache", 2, 1, ("read_file", "from a disk")),
)
HEALTHY = (Plant("healthy", 2, None), Plant("healthy", 3, None))

# A step: a batch, forward, backward, and three collectives as DDP has for its buckets.
RANK = textwrap.dedent("""
    import gc, json, os, random, sys, time
    from raydebug.worker import control_channel
    control_channel.open_channel()
    import torch
    from torch import distributed

    def load_batch(rows):
        return [json.loads(TEXT) for _ in range(rows)]

    def backward(model, size):
        model(torch.ones(size, 256)).sum().backward()

    def read_file(path):
        with open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while file.read(1 << 20):
                pass

    def plant(name, until):
        while time.monotonic() < until:
            if name == "sleep":
                time.sleep(until - time.monotonic())
            elif name == "backward":
                backward(MODEL, 512)
            elif name == "collect":
                gc.collect()
            elif name == "loader":
                load_batch(20)
            elif name == "page_cache":
                read_file(FILE)

    rank, ranks, slow, steps, name, folder, slow_s = json.loads(sys.argv[1])
    TEXT, FILE = json.dumps([*range(2000)]), f"{folder}/data"
    torch.set_num_threads(1)
    MODEL = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    if name == "collect":
        KEPT = [[number] for number in range(300_000)]
    if name == "page_cache" and rank == slow:
        with open(FILE, "wb") as file:
            file.write(os.urandom(1 << 20) * 48)
            os.fsync(file.fileno())
    distributed.barrier()
    print("ready", flush=True)
    step = 0
    while step < steps or os.path.exists(f"{folder}/go-on"):
        load_batch(10)
        backward(MODEL, 256)
        time.sleep(0.02)
        if rank == slow:
            plant(name, time.monotonic() + slow_s)
        for _ in range(3):
            distributed.all_reduce(torch.ones(1000))
        step += 1
        if step == steps:
            print("done", flush=True)
        # All leave in the same step.
        leaves = torch.tensor([not os.path.exists(f"{folder}/go-on")], dtype=torch.int)
        distributed.all_reduce(leaves)
        if step >= steps and leaves.item():
            break
    time.sleep(60)
""")


@contextlib.contextmanager
def ranks_at_work(
    gateway: GatewayUnderTest, plant: Plant, *, steps: int = STEPS, slow_s: float = 0.15
) -> Iterator[None]:
    """Run a training until it has made so many steps; it goes on while the body runs."""
    with tempfile.TemporaryDirectory(prefix="rdt-") as folder:
        (Path(folder) / "go-on").touch()
        path = Path(folder) / "rank.py"
        path.write_text(RANK)
        started = []
        try:
            for rank in range(plant.ranks):
                given = json.dumps([rank, plant.ranks, plant.slow, steps, plant.name, folder, slow_s])
                variables = {**gateway.environment, "RAYDEBUG_JOB": "planted", "TORCH_FR_BUFFER_SIZE": "2000"}
                argv = [sys.executable, str(path), given]
                started.append(subprocess.Popen(argv, env=variables, stdout=subprocess.PIPE, text=True))
            for one in started:
                assert one.stdout is not None
                assert [one.stdout.readline(), one.stdout.readline()] == ["ready\n", "done\n"]
            yield
        finally:
            for one in started:
                one.kill()
                one.communicate()


def look(gateway: Any) -> tuple[SlowRank | None, str]:
    """Return the slow rank of the training that runs, and its cause."""
    (team,) = find_teams(ask_processes(gateway, COLLECTIVE_TIMES, {"last_s": 600.0}, timeout_s=10.0))
    slow = find_slow(team)
    return slow, "" if slow is None else find_cause(gateway, slow)


@contextlib.contextmanager
def load(count: int) -> Iterator[None]:
    """Keep so many processes busy."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


def try_plant(gateway: GatewayUnderTest, plant: Plant, **options: Any) -> tuple[bool, str]:
    """Return whether the right rank was named with its cause, or none where none is slow; and what was said."""
    with ranks_at_work(gateway, plant, **options):
        slow, cause = look(gateway)
    if plant.slow is None:
        return slow is None, "" if slow is None else slow.text
    if slow is None:
        return False, "no rank is named"
    seen = all(word in cause for word in plant.words)
    return slow.rank == plant.slow and seen, f"{slow.text}; {cause}"


def main(words: Sequence[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--load", type=int, default=0)
    parser.add_argument("--healthy", type=int, default=10)
    given = parser.parse_args(words)
    rows = [*PLANTS, *(HEALTHY[number % len(HEALTHY)] for number in range(given.healthy))]
    failed = 0
    with tempfile.TemporaryDirectory() as folder, open_gateway(Path(folder)) as gateway, load(given.load):
        for plant in rows:
            if given.names and plant.name not in given.names:
                continue
            began = time.monotonic()
            good, said = try_plant(gateway, plant)
            failed += not good
            who = "nobody" if plant.slow is None else f"rank {plant.slow} of {plant.ranks}"
            print(
                f"{'good' if good else 'BAD '} {plant.name:12} {who:12} {time.monotonic() - began:5.0f} s  {said}",
                flush=True,
            )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
