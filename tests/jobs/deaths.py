"""Plant one kind of death: `python deaths.py KIND FILE [CGROUP]`; FILE gets the pid of who dies, and when."""

import ctypes
import mmap
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import ray

KIND = sys.argv[1]
PLANTED = sys.argv[2]
CGROUP = sys.argv[3] if len(sys.argv) > 3 else ""
ON_SECOND = ("ray-oom", "raylet-killed", "ray-stop", "node-lost", "container-stopped")
SECOND = {f"node-of-{KIND}": 0.01} if KIND in ON_SECOND else {}


def say(pid: int) -> None:
    """Note who dies, and that it does now."""
    with Path(PLANTED).open("a") as file:
        file.write(f"{pid} {time.time()}\n")


def bus() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        area = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        print(area[0])


def eat() -> None:
    held = []
    while True:
        held.append(bytearray(b"x" * 2**22))
        time.sleep(0.005)


def be_an_engine() -> None:
    ray._raylet.setproctitle("VLLM::EngineCore")
    time.sleep(4)  # its name is asked for 2 s after it has its control channel
    say(os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)


@ray.remote(num_cpus=0, max_restarts=0, resources=SECOND)
class Victim:
    def pid(self) -> int:
        return os.getpid()

    def nap(self) -> None:
        time.sleep(60)

    def update_actor(self, kind: str) -> None:
        if kind not in ("fork-child", "engine"):
            say(os.getpid())
        if kind == "cgroup-oom":
            Path(CGROUP, "cgroup.procs").write_text(str(os.getpid()))
            eat()
        elif kind == "ray-oom":
            eat()
        elif kind == "sigsegv":
            ctypes.string_at(8)
        elif kind == "sigabrt":
            ctypes.CDLL(None).abort()
        elif kind == "sigbus":
            bus()
        elif kind == "thread-exit":
            threading.Thread(target=lambda: os._exit(7), name="loader").start()
            time.sleep(30)
        elif kind == "os-exit":
            os._exit(5)
        elif kind == "sys-exit":
            sys.exit(3)
        elif kind == "fork-child":
            pid = os.fork()
            if pid == 0:
                time.sleep(1)
                say(os.getpid())
                ctypes.string_at(8)
            os.waitpid(pid, 0)
            time.sleep(3)
        elif kind == "disk-full":
            Path("/dev/full").write_bytes(b"checkpoint")
        elif kind == "engine":
            child = multiprocessing.get_context("fork").Process(target=be_an_engine)
            child.start()
            child.join()
            raise RuntimeError("EngineDeadError: Engine core proc died unexpectedly")
        else:
            time.sleep(60)


if __name__ == "__main__":
    ray.init()
    if KIND == "driver-gone":
        victim = Victim.remote()
        ray.get(victim.pid.remote())
        say(os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)
    if KIND == "disk-full":
        say(os.getpid())
        Path("/dev/full").write_bytes(b"checkpoint")
    victim = Victim.remote()
    pid = ray.get(victim.pid.remote())
    if KIND == "ray-kill":
        call = victim.nap.remote()
        time.sleep(0.5)
        say(pid)
        ray.kill(victim)
        ray.get(call)
    ray.get(victim.update_actor.remote(KIND))
