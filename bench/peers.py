"""`python -m bench.peers`: `raydebug trace` and `raydebug memory` beside torch.profiler, viztracer and memray.

One small training on CPU runs under each of them in turn: steps of about 50 ms with the phases of verl's timers, one
list that grows, one step that is slow on purpose: by more than half a second, as `trace --why` names nothing below.
The same idle Ray cluster runs beside all, the plain training too. Needs torch, Ray, raydebug, viztracer and memray in
this environment. Prints a table in Markdown. Example:

    python -m bench.peers --runs 5 --steps 100 --json peers.json
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import measuring
from raydebug.jobs.run_folder import load_run

PYTHON = sys.executable
RAYDEBUG = (PYTHON, "-P", "-m", "raydebug")
LIMIT_S = 300.0
TIMERS = """\
import time
from contextlib import contextmanager

def _timer(name, timing_raw):
    began = time.perf_counter()
    yield
    timing_raw[name] = timing_raw.get(name, 0) + time.perf_counter() - began

@contextmanager
def marked_timer(name, timing_raw):
    yield from _timer(name, timing_raw)
"""
# Writes its pid, a line a step, and its end, in CLOCK_MONOTONIC: all processes of a Linux machine share it.
TRAINING = """\
import contextlib, os, sys, time, torch
from verl.utils.profiler.performance import marked_timer
torch.set_num_threads(1)
steps, slow, trace = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]

def reward(text):
    return sum(len(word) for word in text.split())

class Trainer:
    def __init__(self):
        self.global_steps, self.kept, self.weights = 0, [], torch.rand(400, 400)

    def multiply(self, times):
        for _ in range(times):
            self.weights = torch.tanh(self.weights @ self.weights)

    def keep_rollouts(self):
        self.kept.append(bytearray(256 * 1024))

    def fit(self, out):
        for self.global_steps in range(1, steps + 1):
            raw, began = {}, time.monotonic()
            with marked_timer("step", raw):
                with marked_timer("gen", raw):
                    self.multiply(12)
                with marked_timer("reward", raw):
                    sum(reward("a few words of an answer that a model gave " * 8) for _ in range(1500))
                with marked_timer("update_actor", raw):
                    self.keep_rollouts()
                    self.multiply(600 if self.global_steps == slow else 12)
            out.write(f"{self.global_steps} {began} {time.monotonic()}\\n")
        out.write(f"end {time.monotonic()}\\n")

with open(sys.argv[1], "w", buffering=1) as out:
    out.write(f"{os.getpid()}\\n")
    with torch.profiler.profile() if trace else contextlib.nullcontext() as profile:
        Trainer().fit(out)
    if trace:
        profile.export_chrome_trace(trace[0])
"""


@dataclass(frozen=True)
class Tool:
    """What runs the training, and how one asks it; FILE, STEP and PID in a command are filled in."""

    name: str
    before: tuple[str, ...] = (PYTHON,)
    after: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()  # after the end; without it the file itself is the answer
    asks_meanwhile: tuple[str, ...] = ()  # while it runs
    finds: str = ""  # what an answer that can be used has in it
    answer: str = "-"
    offline: str = "yes: a file"
    is_job: bool = False


_JOB, _NO_SPANS = (*RAYDEBUG, "run", "--", PYTHON), (*RAYDEBUG, "run", "--no-spans", "--", PYTHON)
_LIVE = "asks the gateway of the job's own cluster; no file"
TOOLS = (
    Tool("plain"),
    Tool("`raydebug run`, then `raydebug trace --why STEP`", _JOB, asks=(*RAYDEBUG, "trace", "--why", "STEP"),
         finds="update_actor", answer="text: the slow phase", offline="yes: the run's folder", is_job=True),
    Tool("`raydebug run --no-spans`", _NO_SPANS, offline="yes: the run's folder", is_job=True),
    Tool("`raydebug memory --growth 12`, while it runs", _JOB, asks_meanwhile=(*RAYDEBUG, "memory", "--growth", "12"),
         finds="kept", answer="text: what grows, and who keeps it", offline=_LIVE, is_job=True),
    Tool("`raydebug memory --line 1`, while it runs", _JOB, finds="keep_rollouts", offline=_LIVE, is_job=True,
         asks_meanwhile=(*RAYDEBUG, "memory", "--line", "1", "--pid", "PID"), answer="text: lines that allocate"),
    Tool("`torch.profiler`, whole run", after=("FILE",), finds="aten::mm", answer="a timeline of operators to look at"),
    Tool("`viztracer`", (PYTHON, "-m", "viztracer", "--quiet", "-o", "FILE", "--"), finds="keep_rollouts",
         answer="a timeline of calls to look at"),
    Tool("`memray run`, then `memray summary`", (PYTHON, "-m", "memray", "run", "--quiet", "-o", "FILE"),
         asks=(PYTHON, "-m", "memray", "summary", "-s", "3", "-r", "20", "FILE"), finds="keep_rollouts",
         answer="text: functions that hold memory at its peak"),
)  # fmt: skip
# Source: verl docs/advance/rl_insight.md of 2026-07-15, and the README of verl-project/rl-insight 0.3.
RL_INSIGHT = (
    "| verl's rl-insight: from its documentation, not measured | - | - | - | dashboards of Grafana to look at | - | - |"
    " no: the job sends to `rl-insight server`, which runs Prometheus, Tempo and Grafana |"
)


@dataclass
class Measured:
    """One run of the training under a tool; `said` is cut to what a reader of the raw numbers wants to see."""

    steps_s: list[float] = field(default_factory=list)  # not the slow one; with `asks_meanwhile`, those beside it
    answer_s: float | None = None
    asked_s: float | None = None  # how long the question took, as a part of answer_s
    size: int | None = None
    said: str = ""
    can_use: bool = False


def main() -> None:
    """Let the tools take turns, kill a training under each, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="of each tool; default 5")
    parser.add_argument(
        "--steps",
        type=int,
        default=100,
        help="of a run, 16 or more; three times as many where `raydebug memory` asks meanwhile",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw numbers, too")
    options = parser.parse_args()
    if options.runs < 1 or options.steps < 16:
        parser.error("at least 1 run of 16 steps: the slow step needs neighbours")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # then the cluster ends, too
    versions = {name: importlib.metadata.version(name) for name in ("torch", "viztracer", "memray")}
    about = {**measuring.machine(), **versions, "runs": options.runs, "steps": options.steps}
    found: dict[str, list[Measured]] = {tool.name: [] for tool in TOOLS}
    killed: dict[str, Measured] = {}
    with _place() as folder:
        for number in range(options.runs):
            for tool in TOOLS:
                found[tool.name].append(one := _run(tool, folder, options.steps))
                step_ms = 1e3 * statistics.median(one.steps_s or [0.0])
                print(f"run {number + 1}, {tool.name}: {step_ms:.1f} ms, {one.answer_s} s", file=sys.stderr)
        for tool in TOOLS:
            if tool.finds:
                killed[tool.name] = one = _run(tool, folder, options.steps, kills=True)
                print(f"killed, {tool.name}: {one.can_use}, {one.said[:300]!r}", file=sys.stderr)
    about["load_after"] = measuring.machine()["load"]
    if options.json:
        runs = {name: [vars(run) for run in [*runs, *filter(None, [killed.get(name)])]] for name, runs in found.items()}
        text = json.dumps({"machine": about, "runs (the last one of a tool was killed)": runs}, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    print(_table(about, found, killed))


@contextlib.contextmanager
def _place() -> Iterator[Path]:
    """Yield a folder with the training, beside a cluster in a home that is nobody's; end both."""
    folder = Path(tempfile.mkdtemp(prefix="rdp-", dir="/tmp"))  # short: Ray's sockets lie below it
    for name in [n for n in os.environ if n.startswith(("RAY_", "RAYDEBUG_"))]:
        del os.environ[name]
    # Ray makes workers and jobs nicer than other processes: that is no part of what a tool costs.
    os.environ.update(RAY_worker_niceness="0", RAY_AUTH_MODE="token", RAY_USAGE_STATS_ENABLED="0", VERL_PLATFORM="cpu")
    os.environ.update(HOME=str(folder), XDG_STATE_HOME=str(folder / "state"), COLUMNS="200")  # memray cuts to them
    (package := folder / "verl" / "utils" / "profiler").mkdir(parents=True)
    (package / "performance.py").write_text(TIMERS)
    (folder / "train.py").write_text(TRAINING)
    for module in (package, package.parent, package.parent.parent):
        (module / "__init__.py").touch()  # else an installed verl comes first
    try:
        ports = ("--dashboard-port", "0", "--gateway-port", "0")
        up = _ask([*RAYDEBUG, "up", "--cluster", "local", "--gpus", "0", *ports], folder)
        if up.returncode != 0:
            raise SystemExit(f"no cluster: {up.stderr}")
        yield folder
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave the cluster behind
        _ask([*RAYDEBUG, "down"], folder)
        shutil.rmtree(folder, ignore_errors=True)


def _ask(argv: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def _run(tool: Tool, folder: Path, steps: int, *, kills: bool = False) -> Measured:
    """Run the training once, or until it is killed half way, and ask for the answer."""
    file, out, slow = folder / "record.json", folder / "times", steps // 4
    out.unlink(missing_ok=True)
    file.unlink(missing_ok=True)
    filled = {"FILE": str(file), "STEP": str(slow)}
    measured, asked = Measured(), (0.0, float("inf"))
    steps *= 3 if tool.asks_meanwhile and not kills else 1  # it must not end before the answer, with steps like these
    training = (str(folder / "train.py"), str(out), str(steps), str(slow))
    argv = [filled.get(word, word) for word in (*tool.before, *training, *tool.after)]

    def ask(words: Sequence[str]) -> tuple[float, float]:
        began = time.monotonic()
        answer = _ask([filled.get(word, word) for word in words], folder)
        measured.said = answer.stdout if answer.returncode == 0 else answer.stderr
        measured.can_use = answer.returncode == 0 and tool.finds in answer.stdout
        measured.asked_s = time.monotonic() - began
        return began, time.monotonic()

    with _started(argv, folder) as process:
        if kills:
            filled["PID"] = _wait_for_step(out, steps // 2, process)
            os.kill(int(filled["PID"]), signal.SIGKILL)
        elif tool.asks_meanwhile:
            filled["PID"] = _wait_for_step(out, slow + 1, process)
            asked = ask(tool.asks_meanwhile)
        if process.wait(LIMIT_S) != 0 and not kills:
            raise SystemExit(f"{tool.name} failed:\n{(folder / 'log').read_text(errors='replace')}")
    ended = time.monotonic()
    files = [*Path(load_run()["folder"]).rglob("*")] if tool.is_job else [file]
    measured.size = sum(one.stat().st_size for one in files if one.is_file()) or None
    if tool.asks or (kills and tool.asks_meanwhile):
        _, ended = ask(tool.asks or tool.asks_meanwhile)
    elif tool.finds and not tool.asks_meanwhile:
        measured.said = _events(file)
        measured.can_use = tool.finds in measured.said
    measured.said = measured.said[:2000]
    lines = [line.split() for line in out.read_text().splitlines()[1:]]
    rest = [(float(line[1]), float(line[2])) for line in lines if line[0] not in (str(slow), "end")]
    measured.steps_s = [end - begin for begin, end in rest if end >= asked[0] and begin <= asked[1]]
    if tool.finds and not kills:
        measured.answer_s = measured.asked_s if tool.asks_meanwhile else ended - float(lines[-1][1])
        if not measured.can_use:
            print(f"{tool.name}: no '{tool.finds}' in {measured.said!r}", file=sys.stderr)
    return measured


@contextlib.contextmanager
def _started(argv: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)  # `raydebug run` stops its job
            process.wait(LIMIT_S)


def _wait_for_step(out: Path, number: int, process: subprocess.Popen[bytes]) -> str:
    """Wait until this many steps have ended; return the pid of the training."""
    deadline = time.monotonic() + LIMIT_S
    while len(lines := out.read_text().splitlines() if out.exists() else []) <= number:
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"step {number} did not end: {(out.parent / 'log').read_text(errors='replace')}")
        time.sleep(0.01)
    return lines[0]


def _events(file: Path) -> str:
    """Return the events of a timeline in JSON as text; empty if it is none."""
    try:
        return json.dumps(json.loads(file.read_text())["traceEvents"])
    except (OSError, ValueError, KeyError):
        return ""


def _table(about: dict[str, Any], found: dict[str, list[Measured]], killed: dict[str, Measured]) -> str:
    """Return the tools in Markdown: medians of the runs, with the least and the most."""
    plain = [statistics.median(one.steps_s) for one in found[TOOLS[0].name]]
    plain_means = [statistics.mean(one.steps_s) for one in found[TOOLS[0].name]]
    heads = ("tool", "a step takes longer by (median)", "(mean)", "from the end to the answer", "the answer", "size")
    lines = [
        "{date}, {machine}, {cores} cores, Python {python}, torch {torch}, Ray {ray}, raydebug {raydebug}, viztracer "
        "{viztracer}, memray {memray};\n{runs} runs of {steps} steps; load average {load} before, {load_after} after. "
        "With `raydebug memory`: the steps beside the question. "
        "A plain step: ".format(**about)
        + f"{_spread([1e3 * value for value in plain], '.1f', 'ms')}.\n",
        f"| {' | '.join(heads)} | of use after SIGKILL | without a server |",
        f"|{'---|' * 8}",
    ]
    for tool in TOOLS[1:]:
        runs = [one for one in found[tool.name] if one.steps_s]
        medians = [100 * (statistics.median(one.steps_s) / statistics.median(plain) - 1) for one in runs]
        means = [100 * (statistics.mean(one.steps_s) / statistics.median(plain_means) - 1) for one in runs]
        answers = [one for one in runs if one.can_use]
        took = _spread([one.answer_s for one in answers if one.answer_s is not None], ".2f", "s")
        if tool.asks and answers:
            took += f", of it the question {statistics.median(one.asked_s or 0.0 for one in answers):.2f} s"
        sizes = [] if tool.asks_meanwhile else [one.size / 1e6 for one in runs if one.size]
        cells = [tool.name, _spread(medians, "+.1f", "%"), _spread(means, "+.1f", "%")]
        cells += [f"{took}, from the question" if tool.asks_meanwhile and answers else took, tool.answer]
        cells += [_spread(sizes, ".3f", "MB"), _after_kill(tool, killed.get(tool.name)), tool.offline]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, RL_INSIGHT])


def _after_kill(tool: Tool, killed: Measured | None) -> str:
    if killed is None:
        return "-"
    if tool.asks_meanwhile:
        return "yes" if killed.can_use else "no: it asks the living"
    return "yes" if killed.can_use else f"no: {'a file that cannot be read' if killed.size else 'no file'}"


def _spread(values: Sequence[float], form: str, unit: str) -> str:
    if not values:
        return "-"
    return f"**{statistics.median(values):{form}}** ({min(values):{form}} to {max(values):{form}}) {unit}"


if __name__ == "__main__":
    main()
