"""`python -m bench.diagnose`: `raydebug diagnose` beside `rg -f` with the same patterns, on one core; 10 GB by a pipe.

The logs are those of tests/failures, repeated to 200 MB: of healthy runs with one failure in the middle, and of all
failures, one after another. Both programs are measured whole, with their start, and take turns. rg has no look-around:
the patterns that use it are the same without; and with Unicode it needs half a minute to start: it is off. The lines
that rg finds are compared with those that `diagnose` keeps: of each pattern the first MAX_OF_PATTERN lines.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench import measuring
from raydebug.diagnose.rules import load_rules, prefilter
from raydebug.diagnose.scan import MAX_OF_PATTERN, Kept, read_log

FAILURES = Path(__file__).parent.parent / "tests" / "failures"
RAYDEBUG = str(Path(sys.executable).parent / "raydebug")
LOG_BYTES = 200_000_000
PIPE_BYTES = 10_000_000_000
FAILURE = b"ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.\n"
LOOK_AROUND = re.compile(r"\((?:\?(?:=|!|<=|<!))")


def main() -> None:
    """Measure, and save the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--rg", default=shutil.which("rg"), help="ripgrep; the one on the PATH if not given")
    options = parser.parse_args()
    if options.rg is None:
        parser.error("there is no rg on the PATH: --rg FILE")
    before = measuring.machine()
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        patterns = folder / "patterns"
        patterns.write_text("".join(f"{pattern}\n" for pattern in rg_patterns()))
        rg = [options.rg, "--no-config", "--no-unicode", "--text", "-j1", "-f", str(patterns)]
        for title, log in write_logs(folder):
            rows += compare(title, log, rg, options.repetitions)
        rows.append(pipe(log))
    version = subprocess.run([options.rg, "--version"], capture_output=True, text=True, check=True).stdout
    about = (
        "{date}, {machine}, {cores} cores, Python {python}, raydebug {raydebug}, ".format(**before)
        + f"{version.splitlines()[0]}, {len(rg_patterns())} patterns; {options.repetitions} repetitions, each on one "
        f"core; load average {before['load']} before, {measuring.machine()['load']} after."
    )
    columns = ("log", "program", "MB/s, median (min - max)", "lines")
    measuring.save_program("diagnose", "Diagnosis of long logs", about, columns, rows)


def rg_patterns() -> list[str]:
    """Return the patterns of the rules as rg takes them: without look-around and references."""
    return [without_look_around(pattern.pattern) for rule in load_rules() for pattern in rule.message]


def without_look_around(pattern: str) -> str:
    """Take out what looks ahead or behind; write references as numbers, and what is no ASCII as bytes."""
    pattern = pattern.replace("(?P=one)", r"\d")
    pattern = "".join(c if c.isascii() else "".join(f"\\x{byte:02X}" for byte in c.encode()) for c in pattern)
    while found := LOOK_AROUND.search(pattern):
        end, depth, escaped = found.start(), 0, False
        for end in range(found.start(), len(pattern)):
            depth += 0 if escaped else {"(": 1, ")": -1}.get(pattern[end], 0)
            escaped = pattern[end] == "\\" and not escaped
            if depth == 0:
                break
        pattern = pattern[: found.start()] + pattern[end + 1 :]
    return pattern


def write_logs(folder: Path) -> Iterator[tuple[str, Path]]:
    """Write the logs, and yield each with its title."""
    cases = tomllib.loads((FAILURES / "cases.toml").read_text(encoding="utf-8"))
    for title, is_healthy in (("all failures", False), ("healthy, one failure", True)):
        parts = []
        for case, about in cases.items():
            if (about["class"] == "none") == is_healthy:
                for path in sorted((FAILURES / "logs").glob(f"{case}*")):
                    if path.name.partition(".")[0] == case:
                        parts += [path] if path.is_file() else sorted(path.iterdir())
        texts = [gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes() for path in parts]
        block = b"\n".join(texts) + b"\n"
        half = block * (LOG_BYTES // len(block) // 2)
        log = folder / "run.log"
        log.write_bytes(half + FAILURE + half)
        yield title, log


def compare(title: str, log: Path, rg: list[str], repetitions: int) -> list[list[str]]:
    """Return the rows of one log."""
    programs = {
        "`raydebug diagnose`": [RAYDEBUG, "diagnose", str(log)],
        "`rg -f`": [*rg, "-c", str(log)],
    }
    speeds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(repetitions):
        for name, argv in programs.items():
            start = time.perf_counter()
            subprocess.run(argv, stdout=subprocess.DEVNULL, check=False, preexec_fn=_on_one_core)
            speeds[name].append(log.stat().st_size / 1e6 / (time.perf_counter() - start))
    found = subprocess.run([*rg, "-n", "--no-filename", str(log)], stdout=subprocess.PIPE, check=True)
    kept, missed = same_lines(log, found.stdout)
    size = f"{title} ({log.stat().st_size / 1e6:.0f} MB)"
    words = {
        "`raydebug diagnose`": f"{kept} kept, with those around them; {missed} of rg's first {MAX_OF_PATTERN} "
        "of each pattern are not among them",
        "`rg -f`": f"{found.stdout.count(bytes([10]))} found",
    }
    return [
        [size, name, f"**{statistics.median(of):.0f}** ({min(of):.0f} - {max(of):.0f})", words[name]]
        for name, of in speeds.items()
    ]


def same_lines(log: Path, found: bytes) -> tuple[int, int]:
    """Return how many lines are kept, and how many are not of those that rg found first."""
    kept = Kept()
    with log.open("rb") as file:
        read_log(file, "log", prefilter(), kept)
    numbers = {line.number for line in kept.lines}
    seen: Counter[re.Pattern[str]] = Counter()
    patterns = [re.compile(without_look_around(pattern.pattern)) for rule in load_rules() for pattern in rule.message]
    known: dict[bytes, list[re.Pattern[str]]] = {}  # the lines repeat
    missed = 0
    for row in found.splitlines():
        number, _, line = row.partition(b":")
        if line not in known:
            text = line.decode("utf-8", "replace")
            numbered = [number for number in prefilter().find(line) if number < len(patterns)]
            known[line] = [patterns[one] for one in numbered if patterns[one].search(text)]
        missed += int(number) not in numbers and any(seen[one] < MAX_OF_PATTERN for one in known[line])
        seen.update(known[line])
    return len(numbers), missed


def pipe(log: Path) -> list[str]:
    """Return the row of a long log from a pipe, with the memory that it needs."""
    block, size = log.read_bytes(), 0
    start = time.perf_counter()
    process = subprocess.Popen([RAYDEBUG, "diagnose", "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    while size < PIPE_BYTES:
        process.stdin.write(block)
        size += len(block)
    peak_kib = _peak_kib(process.pid)  # not ru_maxrss: that of a child begins with its parent's
    process.stdin.close()
    process.wait()
    speed = size / 1e6 / (time.perf_counter() - start)
    needed = f"{peak_kib * 1024 / 1e6:.0f} MB of memory at most"
    return [f"a pipe ({size / 1e9:.0f} GB)", "`raydebug diagnose -`", f"**{speed:.0f}**", needed]


def _peak_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])


def _on_one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


if __name__ == "__main__":
    main()
