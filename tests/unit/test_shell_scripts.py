"""Scripts that are written to be difficult, and random ones: read as bash runs them, or with a note.

What bash does with them is recorded in `data/shell_answers.json`; the long form runs bash again, and 10,000 more.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from shell_compare import CASES, bash_runs, case_of, differences, reader_runs

ANSWERS = Path(__file__).parent / "data" / "shell_answers.json"
RANDOM, LONG = 500, 10_000
READ_WHOLE = {"cases": 360, "random": 195}  # of 442 and 500, without a note: no fewer from one change to the next


def names_of(kind: str) -> list[str]:
    return list(CASES) if kind == "cases" else [f"fuzz-{seed}" for seed in range(RANDOM)]


@pytest.mark.parametrize("kind", ["cases", pytest.param("random", marks=pytest.mark.slow)])
@pytest.mark.timeout(300)
def test_each_script_is_read_as_bash_runs_it(kind: str, tmp_path: Path) -> None:
    """No training differs from the one that bash starts without a note that says so, and most scripts need none."""
    answers = json.loads(ANSWERS.read_text())
    wrong, whole = list[str](), 0
    for name in names_of(kind):
        folder = tmp_path / name
        folder.mkdir()
        read = reader_runs(case_of(name), folder)
        if answers[name] is not None:
            runs = [(argv, environ, where) for argv, environ, where in answers[name]]
            wrong += [f"{name}: {text}" for text in differences(runs, read)]
        whole += not isinstance(read, str) and not any(notes for *_, notes in read)
    assert wrong == []
    assert whole >= READ_WHOLE[kind]


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_bash_still_answers_so_and_ten_thousand_more(tmp_path: Path) -> None:
    """The recorded answers are those of the bash that is here, and 10,000 other random scripts are read right too.

    `RAYDEBUG_RECORD=1` writes what it answers instead.
    """
    recorded = [*names_of("cases"), *names_of("random")]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        answers = dict(zip(recorded, pool.map(bash_runs, map(case_of, recorded)), strict=True))
        if os.environ.get("RAYDEBUG_RECORD") == "1":
            lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(runs)}" for name, runs in answers.items())
            ANSWERS.write_text(f"{{\n{lines}\n}}\n")
        assert json.loads(json.dumps(answers)) == json.loads(ANSWERS.read_text())
        more = [f"fuzz-{seed}" for seed in range(RANDOM, RANDOM + LONG)]
        wrong = []
        for name, runs in zip(more, pool.map(bash_runs, map(case_of, more)), strict=True):
            (tmp_path / name).mkdir()
            read = reader_runs(case_of(name), tmp_path / name)
            wrong += [f"{name}: {text}" for text in (differences(runs, read) if runs is not None else [])]
    assert wrong == []
