"""Verbs at random beside parts that stop or die, with no more files or room: clear errors, and nothing is left."""

from __future__ import annotations

import contextlib
import os
import random
import re
import resource
import signal
import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest

from raydebug.cluster import local
from raydebug.cluster.find import load_cluster
from runs import RAYDEBUG, raydebug

LONG = "RAYDEBUG_TEST_LONG" in os.environ
SECONDS, NAME = 3600.0 if LONG else 60.0, "faults"
SEED = int(os.environ.get("RAYDEBUG_TEST_SEED", "1"))
WORK = "import ray, time\n\n@ray.remote\ndef work(number):\n    {}\n    return number\n\n"
PROGRAMS = {
    "works.py": WORK.format("time.sleep(0.3)") + "for step in range(5):\n    print(step, ray.get(work.remote(step)))\n",
    "pauses.py": WORK.format("breakpoint()") + "print(ray.get(work.remote(1)))\n",
    "fails.py": WORK.format("raise ValueError('planted')") + "print(ray.get(work.remote(1)))\n",
}
VERBS = (
    *("run -- python works.py", "run -- python fails.py", "run --detach -- python works.py", "job stop", "job logs"),
    *("run --detach -- python pauses.py", "attach next --timeout 5 -x c", "attach next --timeout 5 -x c", "stacks"),
    *("ps", "paused", "job list", "break list", "memory", "diagnose", "open", "report", "trace", "up --cluster local"),
)
OF_NO_CLUSTER = ("diagnose", "open", "report", "trace")
NEVER_SAID = re.compile(r"raydebug itself failed|Exception ignored|was never awaited|Traceback(?=[^\0]*/raydebug/)")
NEEDS_NAME = re.compile(r"raydebug (?:attach|break|job|paused|ps|stacks|down|up|run|memory|logs)\b[^`;\n]*")
OUR_CODES = {0, 1, 2, 3, 4, 124, 130, 143, -signal.SIGINT, -signal.SIGTERM}


def limit(files: int | None, file_bytes: int | None) -> None:
    """Leave a program few open files, and no room for larger files."""
    for kind, most in ((resource.RLIMIT_NOFILE, files), (resource.RLIMIT_FSIZE, file_bytes)):
        if most is not None:
            resource.setrlimit(kind, (most, most))


def disturb(over: threading.Event) -> None:
    """Stop the dashboard or the gateway for some seconds, or kill the gateway, until it is over."""
    chance = random.Random(SEED)
    parts = {"dashboard/dashboard.py": 8.0, "raydebug.gateway": 8.0}
    while not over.wait(chance.uniform(0.5, 4.0)):
        part, stops_s = chance.choice([*parts.items(), ("raydebug.gateway", 0.0)])
        with contextlib.suppress(psutil.Error):
            for program in local.marked_processes(load_cluster(NAME)):
                if any(part in word for word in program.cmdline()):
                    program.suspend() if stops_s else program.kill()
                    over.wait(chance.uniform(0.5, stops_s) if stops_s else 20.0)
                    program.resume()


@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.xdist_group("ray-own")
def test_random_faults(private_state: Path, tmp_path: Path) -> None:
    """No verb fails by itself, hangs or names a step that leads elsewhere, and nothing is left behind."""
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(text)
    chance, wrong, over = random.Random(SEED), [], threading.Event()
    started = raydebug("up", "--cluster", "local", "--name", NAME, "--dashboard-port", "0", "--gateway-port", "0")
    assert started.returncode == 0, started.stderr
    disturbing = threading.Thread(target=disturb, args=(over,))
    disturbing.start()
    try:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            verb, *rest = (chance.choice(VERBS)).partition(" -- ")
            words = [*verb.split(), *(() if verb in OF_NO_CLUSTER else ("--name", NAME)), *"".join(rest).split()]
            files, room = chance.choice([None, None, None, 8, 12, 25]), chance.choice([None, None, None, 0, 4096])
            number = chance.choice([None] * 6 + [signal.SIGINT, signal.SIGTERM])
            program = subprocess.Popen(
                ["env", "--default-signal=INT,TERM", RAYDEBUG, *words], cwd=tmp_path, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                preexec_fn=lambda files=files, room=room: limit(files, room),
            )  # fmt: skip
            if number is not None:
                time.sleep(chance.uniform(0.2, 5.0))
                program.send_signal(number)
            out, said = program.communicate(timeout=120)
            steps = [step for step in NEEDS_NAME.findall(said) if verb not in OF_NO_CLUSTER and NAME not in step]
            if program.returncode not in OUR_CODES or NEVER_SAID.search(said) or steps:
                wrong.append((words, files, room, number, program.returncode, steps, said[-2000:], out[-500:]))
    finally:
        over.set()
        disturbing.join()
        family = local.marked_processes(load_cluster(NAME))
        ended = raydebug("down", "--name", NAME)
    assert wrong == [], "\n".join(str(fault) for fault in wrong)
    _, left = psutil.wait_procs(family, timeout=10)  # an orphan that has ended is there until init has reaped it
    assert (ended.returncode, left) == (0, [])
