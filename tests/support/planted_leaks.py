"""Plants leaks of host memory in processes, one after the other, and prints what `raydebug memory --growth` names.

`python tests/support/planted_leaks.py [NAME...]`; without names all twelve, and healthy processes. What needs torch or
memray is left out where they are missing. It returns 1 if more than one leak was not named, or a process was blamed.
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
from raydebug.errors import RaydebugError
from raydebug.memory.growth import Growth, find_growth
from raydebug.memory.look import look, record_lines

STEP_S = 0.25
HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_MEMRAY = importlib.util.find_spec("memray") is not None
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
    """A program, what the name of its holder has, and a part of the line that allocates."""

    name: str
    program: str
    holder: str
    line: str = "numpy.full("
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
    Leak("module list", MODULE + method("score(step)"), "reward.py KEPT[*]", line="KEPT.append"),
    Leak("closure", CLOSURE + method("remember(some(step))", "remember = make()"), "closure seen[*]"),
    Leak("default argument", method("remember(some(step))", DEFAULT), "default so_far[*]"),
    Leak("dict of dicts", method("kept[str(step)] = {'tokens': {'ids': some(step)}}", FROZEN), "kept[*]"),
    Leak("autograd graph", method(SUM, GRAPH).replace("self.kept = []", "self.total = 0"),
         "job.total (autograd graph)", line="torch.full(", needs_torch=True),
    Leak("asyncio task", method("asyncio.run_coroutine_threadsafe(wait_for_ever(some(step)), loop)", TASKS),
         "wait_for_ever() batch"),
    Leak("shared memory", method("self.kept.append(segment(step))", SHARED), "job.kept[*]", line="SharedMemory("),
    Leak("fork", method("leave_a_child()", FORK), "leave_a_child", line="os.fork()"),
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


def watch(gateway: GatewayUnderTest, leak: Leak, *, line: bool) -> tuple[list[Growth], str]:
    """Run a leak for five steps, and return what grows and the line that allocates it."""
    program = gateway.start(HEAD + leak.program + TAIL, RAYDEBUG_JOB="leak")
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n", program.communicate()[1]
        until_s = time.monotonic() + 20
        while not any(one["pid"] == program.pid for one in fetch_processes(gateway)):  # type: ignore[arg-type]
            assert time.monotonic() < until_s
            time.sleep(0.05)
        looks = []
        for number in range(5):  # of five steps
            looks.append(look(gateway, "leak", census=True))  # type: ignore[arg-type]
            time.sleep(1.2 * STEP_S if number < 4 else 0)
        grown = [one for one in find_growth(looks) if one.pid == program.pid]
        found = ""
        if line and HAS_MEMRAY and leak.name != "fork":
            lines = record_lines(gateway, "leak", program.pid, 4 * STEP_S, lambda _: None)  # type: ignore[arg-type]
            found = next((one["line"] for one in lines if ".py:" in one["line"]), "")
        elif leak.name == "fork" and grown:
            found = grown[0].holder.removeprefix("forked at ")
        return grown, found
    finally:
        program.kill()
        program.communicate()


def source_of(line: str) -> str:
    """Return the text of FILE:LINE FUNCTION."""
    file, _, rest = line.partition(":")
    return Path(file).read_text().splitlines()[int(rest.split()[0]) - 1] if rest else ""


def table(names: list[str], healthy: int, *, line: bool = True) -> tuple[int, int]:
    """Print a row for each leak; return how many were not named, and how many healthy runs were blamed."""
    missed = blamed = 0
    with tempfile.TemporaryDirectory() as folder, open_gateway(Path(folder)) as gateway:
        for leak in [one for one in LEAKS if one.name in names] + [HEALTHY] * healthy:
            if leak.needs_torch and not HAS_TORCH:
                print(f"{leak.name:18} skipped: no torch here")
                continue
            began = time.monotonic()
            try:
                grown, found = watch(gateway, leak, line=line and leak is not HEALTHY)
            except RaydebugError as error:
                grown, found = [], f"{error}: {error.cause}"
            said = grown[0].text() if grown else "nothing grows"
            if leak is HEALTHY:
                is_right = not grown
                blamed += not is_right
            else:
                is_right = bool(grown) and leak.holder in grown[0].holder
                if line and HAS_MEMRAY:
                    is_right = is_right and leak.line in source_of(found)
                missed += not is_right
            print(f"{leak.name:18} {'yes' if is_right else 'NO '} {time.monotonic() - began:4.1f} s  {said}")
            if found:
                print(f"{'':23} line: {found.rpartition('/')[2]}: {source_of(found).strip()}", flush=True)
    return missed, blamed


if __name__ == "__main__":
    missed, blamed = table(sys.argv[1:] or [one.name for one in LEAKS], 0 if sys.argv[1:] else 20)
    print(f"{missed} of {len(LEAKS)} leaks not named, {blamed} of 20 healthy runs blamed")
    sys.exit(missed > 1 or blamed > 0)
