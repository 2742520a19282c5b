"""`python -m bench.hangs`: stacks of many processes at once."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil

from bench import heads, measuring
from raydebug.client.gateway_client import fetch_stacks
from raydebug.cluster.dashboard import Dashboard
from raydebug.cluster.state import Cluster
from raydebug.cluster.up import choose_ports
from raydebug.protocol import variables

ROOT = Path(__file__).resolve().parent.parent
ACTORS, SIMULATED = 32, 1000
WAIT_S = 120.0
SPY = Path(sys.executable).parent / "py-spy"
JOB = """\
import os, threading, ray
@ray.remote(num_cpus=0)
class Waits:
    def pid(self): return os.getpid()
    def wait(self, depth=20):
        if depth: return self.wait(depth - 1)
        for _ in range(6): threading.Thread(target=threading.Event().wait, daemon=True).start()
        threading.Event().wait()
ray.init()
actors = [Waits.options(max_concurrency=2).remote() for _ in range(COUNT)]
print("pids", *ray.get([one.pid.remote() for one in actors]), flush=True)
ray.get([one.wait.remote() for one in actors])
"""
# A process that plays many: each has a control channel, and answers with stacks of seven threads of 26 frames.
PLAYS = """\
import json, os, selectors, sys
from raydebug.protocol import messages, wire
from raydebug.worker import dial_in
frames = [{"file": "/job/train.py", "line": line, "function": f"Trainer.step_{line}"} for line in range(26)]
body = {"pid": 1, "world": None, "threads": [{"name": f"thread-{n}", "frames": frames} for n in range(7)]}
text = json.dumps(body)
chosen = selectors.DefaultSelector()
names = [os.urandom(8).hex() for _ in range(int(sys.argv[1]))]
for dial_in._secret in names:
    channel = dial_in.proven_connection(messages.CONTROL)
    channel.sendall(wire.encode(wire.event(1, messages.KNOWN, {"breaks": [], "set": [], "by_id": True})))
    chosen.register(channel, selectors.EVENT_READ, wire.Decoder())
print("ready", flush=True)
while True:
    for key, _ in chosen.select():
        for message in key.data.feed(key.fileobj.recv(65536)):
            if message.get("command") == "stacks":
                answer = f'{{"type":"response","request_seq":{message["seq"]},"success":true,"body":{text}}}'.encode()
                key.fileobj.sendall(b"Content-Length: %d\\r\\n\\r\\n%b" % (len(answer), answer))
"""
# What a training pays for its own words: a timer like verl's, recorded and not, and an answer to `training`.
WORDS = """\
import asyncio, json, time, types
from raydebug.worker import spans, training
count, open_samples = 20_000, 256
performance = types.ModuleType("performance")
exec('''
from contextlib import contextmanager
import time
def _timer(name, timing_raw):
    began = time.perf_counter()
    yield
    timing_raw[name] = timing_raw.get(name, 0) + time.perf_counter() - began
@contextmanager
def simple_timer(name, timing_raw):
    yield from _timer(name, timing_raw)
class AgentLoopWorker:
    async def _run_agent_loop(self, trajectory, **kwargs):
        with simple_timer("generate_sequences", {}):
            await kwargs["until"].wait()
''', performance.__dict__)
run = performance.AgentLoopWorker._run_agent_loop
run.__code__ = run.__code__.replace(co_filename="/v/site-packages/verl/experimental/agent_loop/agent_loop.py")
def timer_us():
    raw, began = {}, time.thread_time()
    for _ in range(count):
        with performance.simple_timer("gen", raw):
            pass
    return (time.thread_time() - began) / count * 1e6
async def answer_ms():
    until = asyncio.Event()
    run = lambda n: performance.AgentLoopWorker()._run_agent_loop({"sample_index": n}, until=until)
    tasks = [asyncio.create_task(run(n)) for n in range(open_samples)]
    await asyncio.sleep(0.1)
    began = time.thread_time()
    assert training.words({})["samples_total"] == open_samples
    took = time.thread_time() - began
    until.set()
    await asyncio.gather(*tasks)
    return took * 1e3
timer_us()
plain = timer_us()
spans.watch(performance)
timer_us()
print(json.dumps({"plain": plain, "watched": timer_us(), "answer": asyncio.run(answer_ms())}))
"""


def main() -> None:
    """Measure, and save the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=10)
    repetitions = parser.parse_args().repetitions
    before = measuring.machine()
    rows = [*_simulated(repetitions), *_workers(repetitions), *_words(repetitions)]
    cells = [
        (name, goal, f"**{statistics.median(values):.3f}** {unit} ({min(values):.3f} - {max(values):.3f})")
        for name, goal, unit, values in rows
    ]
    about = (
        "{date}, {machine}, {cores} cores, Python {python}, Ray {ray}, raydebug {raydebug}; ".format(**before)
        + f"{repetitions} repetitions; load average {before['load']} before, {measuring.machine()['load']} after."
    )
    measuring.save_program("hangs", "Stacks of many processes", about, ("figure", "goal", "median (min - max)"), cells)


Row = tuple[str, str, str, list[float]]


def _times(measured: Callable[[], Any], repetitions: int) -> list[float]:
    found = []
    for _ in range(repetitions):
        start = time.perf_counter()
        measured()
        found.append(time.perf_counter() - start)
    return found


def _workers(repetitions: int) -> Iterator[Row]:
    """Stacks of 32 Ray workers: ours, py-spy, and the dashboard of a head without raydebug."""
    few = max(1, repetitions // 3)
    with heads.both(RAY_DASHBOARD_ENABLE_PROFILING="1") as (ours, stock):
        pids = _start(ours, {variables.JOB: "bench"})
        found = fetch_stacks(ours, timeout_s=5.0)
        answered = [one for one in found if one["state"] == "answered" and one["pid"] in pids]
        assert len(answered) == ACTORS, [one["state"] for one in found]
        yield (f"{ACTORS} Ray workers: all stacks", "0.1 s", "s",
               _times(lambda: fetch_stacks(ours, timeout_s=5.0), repetitions))  # fmt: skip
        yield f"... `py-spy dump`, one after another ({few} repetitions)", "", "s", _times(lambda: _spy(pids), few)
        pids = _start(stock, {})
        yield (f"... Ray's `/worker/traceback`, one after another ({few} repetitions)", "", "s",
               _times(lambda: _ask_dashboard(stock, pids), few))  # fmt: skip


def _start(cluster: Cluster, env: dict[str, str]) -> list[int]:
    dashboard = Dashboard(cluster)
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(JOB.replace("COUNT", str(ACTORS)))
    job = dashboard.submit_job(f"{sys.executable} {file.name}", submission_id=f"bench-{secrets.token_hex(3)}", env=env)
    deadline = time.monotonic() + WAIT_S
    while "pids " not in (text := dashboard.job_logs(job)):
        assert time.monotonic() < deadline, text
        time.sleep(0.5)
    time.sleep(3)  # until all of them wait
    return [int(word) for word in text.partition("pids ")[2].splitlines()[0].split()]


def _words(repetitions: int) -> Iterator[Row]:
    """What the words of a training cost it; beside it py-spy, which would have to look every 10 s."""
    argv = [sys.executable, "-c", WORDS]
    measured = [json.loads(subprocess.run(argv, check=True, capture_output=True).stdout) for _ in range(repetitions)]
    yield "CPU time of one verl timer (simple_timer)", "", "us", [one["plain"] for one in measured]
    yield "CPU time of the same timer, while raydebug records its phase", "", "us", [one["watched"] for one in measured]
    yield "CPU time to answer the question `training`, 256 samples open", "", "ms", [one["answer"] for one in measured]
    with subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"]) as process:
        time.sleep(0.5)
        shares = [_cpu_s(lambda: _spy([process.pid])) * 10 for _ in range(repetitions)]  # of 10 s, in percent
        process.kill()
    yield "`py-spy dump` of one process every 10 s instead: share of a core", "0.1 %", "%", shares


def _cpu_s(measured: Callable[[], Any]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    measured()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _spy(pids: list[int]) -> None:
    for pid in pids:
        subprocess.run([SPY, "dump", "--pid", str(pid)], check=True, capture_output=True)


def _ask_dashboard(cluster: Cluster, pids: list[int]) -> None:
    headers = {"Authorization": f"Bearer {cluster.token}"}
    with httpx.Client(base_url=cluster.dashboard, headers=headers, timeout=WAIT_S, trust_env=False) as client:
        (node,) = Dashboard(cluster).nodes()
        for pid in pids:
            answer = client.get("/worker/traceback", params={"pid": pid, "node_id": node["node_id"], "native": "0"})
            assert answer.status_code == 200, answer.text


@contextlib.contextmanager
def gateway() -> Iterator[tuple[Any, dict[str, str], psutil.Process]]:
    """Run a gateway; yield it as a cluster, the environment of processes that dial it, and its process."""
    with tempfile.TemporaryDirectory(prefix="rd-bench-") as name:
        token, ports = secrets.token_hex(32), choose_ports({"gateway": 0}, {}, ())
        (Path(name) / "token").write_text(token)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("RAYDEBUG_", "RAY_"))}
        environment = {**clean, variables.TOKEN_PATH: f"{name}/token", variables.GATEWAY: f"127.0.0.1:{ports['dial']}"}
        argv = [sys.executable, "-m", "raydebug.gateway", "--client-port", str(ports["gateway"])]
        argv += ["--dial-port", str(ports["dial"])]
        with subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL) as process:
            try:
                time.sleep(2)
                cluster = SimpleNamespace(
                    name="bench",
                    repair="",
                    is_joined=False,
                    remote=None,
                    gateway_host="127.0.0.1",
                    gateway_port=ports["gateway"],
                    token=token,
                )
                yield cluster, environment, psutil.Process(process.pid)
            finally:
                process.kill()


def _simulated(repetitions: int) -> Iterator[Row]:
    with gateway() as (cluster, environment, process):
        argv = [sys.executable, "-c", PLAYS, str(SIMULATED)]
        empty = process.memory_info().rss
        with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE) as played:
            try:
                assert played.stdout is not None
                played.stdout.readline()
                one = process.memory_info().rss
                yield "gateway's memory for a control channel", "", "kB", [(one - empty) / SIMULATED / 1e3]
                found = fetch_stacks(cluster, timeout_s=10.0)
                assert [one["state"] for one in found] == ["answered"] * SIMULATED
                size_mb = len(json.dumps(found)) / 1e6
                yield (f"{SIMULATED} simulated processes: all stacks ({size_mb:.0f} MB)", "1 s", "s",
                       _times(lambda: fetch_stacks(cluster, timeout_s=10.0), repetitions))  # fmt: skip
            finally:
                played.kill()


if __name__ == "__main__":
    main()
