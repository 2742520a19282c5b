"""Plants leaks of host memory in processes, one after the other, and prints what `raydebug memory --growth` names.

`python tests/support/planted_leaks.py [NAME...]`; without names all twelve, and healthy processes. What needs torch
is left out where it is missing. It returns 1 if more than one leak was not named, or a process was blamed.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from gateway_under_test import GatewayUnderTest, open_gateway
from raydebug.client.gateway_client import fetch_processes
from raydebug.memory.growth import Growth, find_growth
from raydebug.memory.look import look

STEP_S = 0.25
HAS_TORCH = importlib.util.find_spec("torch") is not None
HEAD = f"""
import asyncio, collections, ctypes, functools, gc, importlib.util, os, sys, threading, time
import multiprocessing.shared_memory
import numpy
from raydebug.worker import control_channel
control_channel.open_channel()
STEP_S = {STEP_S}
def some(step=0):
    return numpy.full(125_000, step, float)
"""
TAIL = """
print("ready", flush=True)
for step in range(400):
    scratch = some(step) * 2
    job.step(step)
    time.sleep(STEP_S)
"""


class Leak(NamedTuple):
    """A program, and what the name of its holder has."""

    name: str
    program: str
    holder: str
    needs_torch: bool = False


def method(body: str, before: str = "") -> str:
    """Return a program whose steps do this."""
    start = "class Job:\n    def __init__(self):\n        self.kept = []\n"
    return f"{before}\n{start}    def step(self, step):\n        {body}\njob = Job()\n"


REWARD = """
import numpy
KEPT = []
def score(step):
    KEPT.append(numpy.full(125_000, step, float))
    return 1.0
"""
MODULE = f"""
import pathlib
path = pathlib.Path(__file__).with_name("reward.py")
path.write_text({REWARD!r})
spec = importlib.util.spec_from_file_location("custom_module", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
score = module.score
del module, spec
"""
CLOSURE = """
def make():
    seen = []
    def remember(one):
        seen.append(one)
    return remember
"""
DEFAULT = "def remember(one, so_far=[]):\n    so_far.append(one)\n"
TASKS = """
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
never = asyncio.Event()
async def wait_for_ever(batch):
    await never.wait()
"""
SHARED = """
def segment(step):
    one = multiprocessing.shared_memory.SharedMemory(create=True, size=1_000_000)
    os.unlink("/dev/shm/" + one.name)
    ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(one.buf)), 1, 1_000_000)
    return one
"""
FORK = """
def leave_a_child():
    parent = os.getpid()
    if os.fork() == 0:
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.dup2(1, 2)
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(0)
"""
CACHED = "@functools.lru_cache(maxsize=None)\ndef features(step):\n    return some(step)\n"
SUM = "self.total = self.total + (torch.full((125_000,), step + 0.5) * weight).mean()"
GRAPH = "import torch\ntorch.set_num_threads(1)\nweight = torch.ones(125_000, requires_grad=True)\n"
FROZEN = "kept = {}\njunk = [[one] for one in range(10_000)]\ngc.collect()\ngc.freeze()\n"

LEAKS = (
    Leak("instance list", method("self.kept.append(some(step))"), "job.kept[*]"),
    Leak("module list", MODULE + method("score(step)"), "reward.py KEPT[*]"),
    Leak("closure", CLOSURE + method("remember(some(step))", "remember = make()"), "closure seen[*]"),
    Leak("default argument", method("remember(some(step))", DEFAULT), "default so_far[*]"),
    Leak("dict of dicts", method("kept[str(step)] = {'tokens': {'ids': some(step)}}", FROZEN), "kept[*]"),
    Leak("autograd graph", method(SUM, GRAPH).replace("self.kept = []", "self.total = 0"),
         "job.total (autograd graph)", needs_torch=True),
    Leak("asyncio task", method("asyncio.run_coroutine_threadsafe(wait_for_ever(some(step)), loop)", TASKS),
         "wait_for_ever() batch"),
    Leak("shared memory", method("self.kept.append(segment(step))", SHARED), "job.kept[*]"),
    Leak("fork", method("leave_a_child()", FORK), "leave_a_child"),
    Leak("lru_cache", method("features(step)", CACHED), "features (lru_cache)[*]"),
    Leak("thread local", method("local.seen.append(some(step))", "local = threading.local()\nlocal.seen = []"),
         "local (of a thread).seen[*]"),
    Leak("numpy view", method("self.kept.append(some(step)[:2])"), "job.kept[*]"),
)  # fmt: skip
HEALTHY = Leak(
    "healthy",
    CACHED
    + """
class Job:
    def __init__(self):
        self.window, self.by_key, self.log = collections.deque(maxlen=4), {}, []
        for step in range(6):
            self.step(step)
    def step(self, step):
        self.last = [some(step) for _ in range(step % 4)]
        self.window.append(some(step))
        self.by_key[step % 3] = some(step)
        features(step % 5)
        self.log.append({"step": step, "reward": 1.0})
job = Job()
""",
    "",
)
"""It keeps some steps, and fills its caches before it is looked at: a cache that fills grows."""


def watch(gateway: GatewayUnderTest, leak: Leak) -> list[Growth]:
    """Run a leak for five steps, and return what grows."""
    program = gateway.start(HEAD + leak.program + TAIL, RAYDEBUG_JOB="leak")
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n", program.communicate()[1]
        until_s = time.monotonic() + 20
        while not any(process["pid"] == program.pid for process in fetch_processes(gateway)):  # type: ignore[arg-type]
            assert time.monotonic() < until_s
            time.sleep(0.05)
        looks = []
        for number in range(5):  # of five steps
            looks.append(look(gateway, "leak", census=True))  # type: ignore[arg-type]
            time.sleep(1.2 * STEP_S if number < 4 else 0)
        return [growth for growth in find_growth(looks) if growth.pid == program.pid]
    finally:
        program.kill()
        program.communicate()


def is_named(leak: Leak, grown: list[Growth]) -> bool:
    """Return whether the holder of a leak is named, and of child processes the line that forks them."""
    if not grown or leak.holder not in grown[0].holder:
        return False
    if leak.name != "fork":
        return True
    file, _, place = grown[0].holder.removeprefix("forked at ").partition(":")
    return bool(place) and "os.fork(" in Path(file).read_text().splitlines()[int(place.split()[0]) - 1]


def table(names: list[str], healthy: int) -> tuple[int, int]:
    """Print a row for each leak; return how many were not named, and how many healthy runs were blamed."""
    missed = blamed = 0
    with tempfile.TemporaryDirectory() as folder, open_gateway(Path(folder)) as gateway:
        for leak in [leak for leak in LEAKS if leak.name in names] + [HEALTHY] * healthy:
            if leak.needs_torch and not HAS_TORCH:
                print(f"{leak.name:18} skipped: no torch here")
                continue
            began = time.monotonic()
            grown = watch(gateway, leak)
            is_right = not grown if leak is HEALTHY else is_named(leak, grown)
            blamed += leak is HEALTHY and not is_right
            missed += leak is not HEALTHY and not is_right
            text = grown[0].text() if grown else "nothing grows"
            print(
                f"{leak.name:18} {'yes' if is_right else 'NO '} {time.monotonic() - began:4.1f} s  {text}", flush=True
            )
    return missed, blamed


if __name__ == "__main__":
    missed, blamed = table(sys.argv[1:] or [one.name for one in LEAKS], 0 if sys.argv[1:] else 20)
    print(f"{missed} of {len(LEAKS)} leaks not named, {blamed} of 20 healthy runs blamed")
    sys.exit(missed > 1 or blamed > 0)
