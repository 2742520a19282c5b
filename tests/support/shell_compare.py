"""Compare what raydebug reads of a shell script with what bash runs.

    python tests/support/shell_compare.py            all scripts of tests/unit/data/shell_cases.toml
    python tests/support/shell_compare.py NAME ...   some of them, with the script
    python tests/support/shell_compare.py --fuzz N SEED   N random scripts of shell_fuzz.py

Each training has a first argument `tag=N`. A difference counts only where the reader has no note about that training:
"the same words as bash itself gives the trainer, or a note why not".
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raydebug.commands.trainings import find_trainings
from raydebug.errors import RaydebugError
from shell_fuzz import script_of

LIMIT_S = 10.0
PATH = "/usr/bin:/bin"
PROGRAM = "python3 -m verl.trainer.main_ppo"
CASES: dict[str, dict[str, Any]] = tomllib.loads(
    (Path(__file__).parents[1] / "unit" / "data" / "shell_cases.toml").read_text()
)
# NUL between words, then the environment and the folder, and a line for each run.
STUB = """#!/bin/bash
{{ printf '%s\\0' "$@"; printf '\\1'; env -0 | grep -z -E '^(FZ_|PYTHONPATH)'; printf '\\1%s\\2' "$PWD"; }} >> {written}
"""
Ran = list[tuple[list[str], dict[str, str], str]]  # argv, environment, folder
Case = tuple[str, Sequence[str], Mapping[str, str], Mapping[str, str]]


def case_of(name: str) -> Case:
    """Return a script with its arguments, files and environment: `fuzz-SEED`, or the name of a case."""
    if name.startswith("fuzz-"):
        text, arguments, files, environ = script_of(int(name.removeprefix("fuzz-")))
        return text, arguments, files, environ
    case = CASES[name]
    files = {file: text.replace("@P", PROGRAM) for file, text in case.get("files", {}).items()}
    return case["script"].replace("@P", PROGRAM), case.get("arguments", ()), files, case.get("environ", {})


def write_case(case: Case, folder: Path) -> None:
    """Write a script and its files."""
    for name, text in {**case[2], "run.sh": case[0]}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def bash_runs(case: Case) -> Ran | None:
    """Return each training that bash starts; None where it does not end."""
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch).resolve()
        for name in ("python3", "python", "torchrun"):
            (home / "bin").mkdir(exist_ok=True)
            (home / "bin" / name).write_text(STUB.format(written=home / "written"))
            (home / "bin" / name).chmod(0o755)
        (home / "w").mkdir()
        write_case(case, home / "w")
        environ = {"PATH": f"{home}/bin:{PATH}", "HOME": "/home/u", **case[3]}
        try:
            subprocess.run(
                ["bash", "run.sh", *case[1]], cwd=home / "w", env=environ, capture_output=True, timeout=LIMIT_S,
                start_new_session=True, stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None
        written = (home / "written").read_text() if (home / "written").exists() else ""
        return [_run_of(text, str(home / "w")) for text in written.split("\2")[:-1]]


def _run_of(text: str, folder: str) -> tuple[list[str], dict[str, str], str]:
    words, environ, where = text.replace(folder, "@W").split("\1")
    pairs = [pair.partition("=") for pair in environ.split("\0") if pair]
    return words.split("\0")[:-1], {name: value for name, _, value in pairs}, where


def reader_runs(case: Case, folder: Path) -> list[tuple[list[str], dict[str, str], str, list[str]]] | str:
    """Return what is read of a script, each training with its notes; a text where it is refused."""
    write_case(case, folder)
    environ = {"PATH": PATH, "HOME": "/home/u", **case[3]}
    try:
        trainings = find_trainings(["bash", "run.sh", *case[1]], environ, folder)
    except RaydebugError as failure:
        return f"refused: {failure}"
    return [
        (
            [word.replace(str(folder), "@W") for word in it.argv[1:]],
            {
                name: value.replace(str(folder), "@W")
                for name, value in it.environ.items()
                if name.startswith(("FZ_", "PYTHONPATH"))
            },
            str(it.folder).replace(str(folder), "@W"),
            it.notes,
        )
        for it in trainings
    ]


def differences(runs: Ran, read: list[tuple[list[str], dict[str, str], str, list[str]]] | str) -> list[str]:
    """Return where a script is read in another way than bash runs it, without a note."""
    if isinstance(read, str):
        return []
    first: dict[str, tuple[list[str], dict[str, str], str]] = {}
    for argv, environ, folder in runs:
        first.setdefault(_tag(argv), (argv, environ, folder))
    shown: dict[str, list[tuple[list[str], dict[str, str], str, list[str]]]] = {}
    for training in read:
        shown.setdefault(_tag(training[0]), []).append(training)
    found = [f"{tag}: bash runs it, the reader has no such training" for tag in first if tag not in shown]
    for tag, trainings in shown.items():
        plain = [it for it in trainings if not it[3]]
        if tag not in first:
            found += [f"{tag}: bash never runs it, it has no note: {it[0]}" for it in plain]
        elif plain and (same := [it for it in plain if it[0] == first[tag][0]]):
            if same[0][:3] != first[tag]:
                found.append(f"{tag}: bash {first[tag]}, read {same[0]}")
        elif plain:
            found.append(f"{tag}: bash {first[tag][0]}, read {plain[0][0]}")
    return found


def _tag(argv: Sequence[str]) -> str:
    return next((word for word in argv if word.startswith("tag=")), "?")


def main() -> None:
    """Print each difference."""
    words = sys.argv[1:]
    names = words or list(CASES)
    if words[:1] == ["--fuzz"]:
        start = int(words[2]) if len(words) > 2 else 0
        names = [f"fuzz-{seed}" for seed in range(start, start + int(words[1]))]
    counts = {"differ": 0, "without a note": 0, "refused": 0, "do not end": 0}
    for name in names:
        runs = bash_runs(case_of(name))
        with tempfile.TemporaryDirectory() as scratch:
            read = reader_runs(case_of(name), Path(scratch).resolve())
        found = differences(runs, read) if runs is not None else []
        counts["differ"] += bool(found)
        counts["do not end"] += runs is None
        counts["refused"] += isinstance(read, str)
        counts["without a note"] += not isinstance(read, str) and not any(it[3] for it in read)
        sys.stdout.write("".join(f"{name}: {text}{os.linesep}" for text in found))
        if words and words[0] != "--fuzz":
            sys.stdout.write(f"{case_of(name)[0]}\nbash: {json.dumps(runs)}\nread: {json.dumps(read)}\n")
    sys.stdout.write(f"{len(names)} scripts: {counts}\n")


if __name__ == "__main__":
    main()
