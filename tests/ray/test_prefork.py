"""A warm cluster: its workers and drivers are forked from processes with Ray imported, and Ray treats them as usual."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from raydebug.cluster.kinds import kind_of
from raydebug.cluster.state import Cluster
from raydebug.prefork import ray_config
from runs import Run, local_cluster, starting_runs

pytestmark = pytest.mark.timeout(180)

PROGRAM = """
import os, sys, time
import ray
import reward

def kind():
    return "warm" if "raydebug.prefork.forked_process" in sys.modules else "cold"

@ray.remote
def task():
    import reward
    return kind(), reward.VALUE

@ray.remote
class Actor:
    def look(self):
        import reward
        return kind(), reward.VALUE, os.getpid(), os.getppid()
    def job(self):
        return ray.get_runtime_context().get_job_id() == os.environ["RAY_JOB_ID"], os.environ.get("OMP_NUM_THREADS")

ray.init()
actor = Actor.remote()
print("driver", kind(), reward.VALUE)
print("task", *ray.get(task.remote()))
print("actor", *ray.get(actor.look.remote()), flush=True)
print("its", *ray.get(actor.job.remote()), flush=True)
if sys.argv[1:] == ["wait"]:
    try:
        while True:
            time.sleep(0.1)
            ray.get(actor.look.remote())
    except ray.exceptions.RayActorError:
        print("the actor died", flush=True)
"""


@pytest.fixture(scope="module")
def warm_cluster(private_state: Path) -> Iterator[Cluster]:
    """A warm cluster whose pool is ready."""
    with local_cluster("warm", prefork=True) as found:
        wait_for(lambda: [z["state"] for z in pool(found)["zygotes"]] == ["ready"])
        yield found


@pytest.fixture
def start(warm_cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start the program on the warm cluster."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "reward.py").write_text("VALUE = 1\n")
    with starting_runs(warm_cluster) as starting:
        yield lambda *arguments: starting("--", "python", "program.py", *arguments, cwd=tmp_path)


def pool(cluster: Cluster) -> dict:
    found = kind_of(cluster).prefork_pool()
    assert found is not None
    return found


def wait_for(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def said(text: str, word: str) -> list[str]:
    (line,) = [row for row in text.splitlines() if row.startswith(f"{word} ")]
    return line.split()[1:]


@pytest.mark.long
def test_what_changed_between_two_runs_is_what_the_second_uses(start, tmp_path):
    """Driver, task and actor are warm, belong to their own job, and import the user's current module in each run."""
    for value in (1, 22):
        (tmp_path / "reward.py").write_text(f"VALUE = {value}\n")
        text = start().end()
        assert said(text, "driver") == ["warm", str(value)]
        assert said(text, "task") == ["warm", str(value)]
        assert said(text, "actor")[:2] == ["warm", str(value)]
        assert said(text, "its") == ["True", "1"]
        assert "leaked" not in text


PAUSING = """
import sys
import ray
import reward
import yaml

@ray.remote
def task():
    breakpoint()
    return reward.score(yaml.safe_load("20")), "raydebug.prefork.forked_process" in sys.modules

ray.init()
print("score", *ray.get(task.remote()))
"""


@pytest.mark.long
def test_forks_pause_as_started_processes_do(warm_cluster, tmp_path):
    """breakpoint() pauses in a fork; so does --break in the user's module and in a module that the zygote imported."""
    (tmp_path / "pausing.py").write_text(PAUSING)
    (tmp_path / "reward.py").write_text("def score(value):\n    return value + 1\n")
    breaks = ("--break", "reward.py:score", "--break", "yaml:safe_load")
    places = []
    with starting_runs(warm_cluster, tmp_path) as starting:
        job = starting(*breaks, "--", "python", "pausing.py")
        for _ in range(3):
            (pause,) = job.pauses(1)
            places.append(pause["function"])
            job.attach(pause["id"], "c")
        assert said(job.end(), "score") == ["21", "True"]
    assert places == ["task", "safe_load", "score"]


@pytest.mark.long
def test_a_killed_worker_is_dead_for_ray(start):
    """Ray detects SIGKILL of a forked worker at once; its proxy process ends too."""
    job = start("wait")
    wait_for(lambda: "its True" in job.text)
    pid = int(said(job.text, "actor")[2])
    os.kill(pid, signal.SIGKILL)
    assert "the actor died" in job.end()


@pytest.mark.long
def test_a_killed_zygote_harms_no_job(warm_cluster, start):
    """SIGKILL of the zygote does not disturb the job's processes; stopping the job then leaves no process behind."""
    job = start("wait")
    wait_for(lambda: "its True" in job.text)
    pid = int(said(job.text, "actor")[2])
    for zygote in pool(warm_cluster)["zygotes"]:
        os.kill(zygote["pid"], signal.SIGKILL)
    time.sleep(1.0)
    assert psutil.pid_exists(pid)
    assert job.process.poll() is None
    job.process.send_signal(signal.SIGINT)
    job.process.wait(30)
    wait_for(lambda: not psutil.pid_exists(pid))
    assert said(start().end(), "actor")[1] == "1"  # without a zygote: a cold start


def test_rays_settings_in_c_can_be_found_and_written():
    """Ray's library has each mark in exactly one place and accepts new values; ray_config.py relies on it."""
    program = (
        "import os\n"
        "from raydebug.prefork import ray_config\n"
        "ray_config.load_with_marks()\n"
        "from ray._raylet import Config\n"
        "before = Config.kill_worker_timeout_milliseconds()\n"
        "os.environ.update(RAY_JOB_ID='01000000', RAY_RAYLET_PID='42', RAY_kill_worker_timeout_milliseconds='7')\n"
        "ray_config.refresh(os.environ)\n"
        "import ctypes\n"
        "text = {n: ctypes.string_at(at) for n, at in ray_config._places.items()}\n"
        "print(before, Config.kill_worker_timeout_milliseconds(), text)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    wanted = {"RAY_JOB_ID": b"01000000", "RAY_RAYLET_PID": b"0000000042"}
    assert done.stdout.strip() == f"5000 7 {wanted}", done.stderr
    assert ctypes.sizeof(ctypes.c_void_p) == 8
    assert set(ray_config.MARKS) == set(wanted)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("ray_config.LIBRARY = '/other.so'", "Ray's settings are not where they are expected (ray_config.py)"),
        ("zygote.ray_config.MARKS = {'RAY_OTHER': b'f1e2d3c4'}", "Ray's settings are not where"),
    ],
    ids=["another library", "another name"],
)
def test_a_ray_whose_settings_are_elsewhere_is_not_forked(program, said):
    """If a mark is not found in exactly one place, the zygote is unusable: its workers start without it."""
    program = (
        "from raydebug.prefork import ray_config, zygote\n"
        f"{program}\n"
        "print(zygote._why_unfit(zygote.Loaded(('ray',))))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith(said), done.stderr


def test_values_that_do_not_fit_rays_settings_are_refused():
    """A job id of another length is not written; the requesting process then starts the program itself."""
    program = (
        "from raydebug.prefork import ray_config\n"
        "ray_config.load_with_marks()\n"
        "for value in ('1', '010000000'):\n"
        "    try: ray_config.refresh({'RAY_JOB_ID': value})\n"
        "    except ray_config.NotFound as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "RAY_JOB_ID is '1'\nRAY_JOB_ID is '010000000'\n", done.stderr
