"""How right `raydebug diagnose` is on logs whose cause is known: `python -m scored_logs [FOLDER]` prints a table.

The logs are those of tests/failures, tests/unit/failure_logs.txt and tests/unit/healthy_logs.txt, and those of a folder
with a JSON file for each log: `log`, `class`, `also_ok`. A section of failure_logs.txt begins with `=== name => what`:
the classes that are right, a text behind `~` that the first answer names, or `none`.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from raydebug.diagnose.answer import EXACT, NO_FAILURE, UNKNOWN, Answer
from raydebug.diagnose.cause import diagnose
from raydebug.diagnose.inputs import read_text, read_words
from raydebug.diagnose.read import Line

TESTS = Path(__file__).parent.parent
HEALTHY = "none"
STEPS = "".join(
    f"(TaskRunner pid=11) step:{n} - actor/loss:0.{n} - critic/score/mean:0.{n} - timing_s/step:3.1\n"
    for n in range(1, 30)
)
COLUMNS = ("logs", "right", "exact, right", "exact, wrong", "unknown", "false alarms", "missed")


@dataclass(frozen=True)
class ScoredLog:
    """A log, and what is right to say of it."""

    name: str
    lines: list[Line]
    right: tuple[str, ...]  # classes, or one text behind `~`

    def is_right(self, answer: Answer) -> bool:
        """Say whether the first diagnosis is right."""
        if answer.status == NO_FAILURE or not answer.diagnoses:
            return self.right == (HEALTHY,) and answer.status == NO_FAILURE
        first = answer.diagnoses[0]
        words = " | ".join([first.name, first.title, first.cause, *(line.text for line in first.evidence)])
        expected = self.right[0]
        return expected[1:].lower() in words.lower() if expected.startswith("~") else first.name in self.right


def sections(name: str) -> Iterator[tuple[str, str]]:
    """Yield the titles and texts of a file of logs."""
    parts = re.split(r"^=== (.*)\n", (TESTS / "unit" / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
    yield from zip(parts[1::2], parts[2::2], strict=True)


def written_logs() -> list[ScoredLog]:
    """Return the logs of failure_logs.txt."""
    logs = []
    for title, text in sections("failure_logs.txt"):
        name, _, right = title.partition(" => ")
        logs.append(ScoredLog(name, read_text(text.replace("{STEPS}\n", STEPS), "job.log"), tuple(right.split("|"))))
    return logs


def healthy_logs() -> list[ScoredLog]:
    """Return the logs of healthy_logs.txt."""
    texts = sections("healthy_logs.txt")
    return [ScoredLog(title.partition(":")[0], read_text(text, "job.log"), (HEALTHY,)) for title, text in texts]


def recorded_logs() -> list[ScoredLog]:
    """Return the failures that were made with the real programs."""
    folder = TESTS / "failures"
    logs = []
    for name, case in tomllib.loads((folder / "cases.toml").read_text(encoding="utf-8")).items():
        paths = [str(path) for path in (folder / "logs").glob(f"{name}*") if path.name.partition(".")[0] == name]
        logs.append(ScoredLog(name, read_words(paths, "default").lines, (case["class"], *case.get("also", ()))))
    return logs


def folder_logs(folder: Path) -> list[ScoredLog]:
    """Return the logs of a folder of JSON files."""
    rows = [(path.stem, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.json"))]
    return [
        ScoredLog(name, read_text(row["log"], "job.log"), (row["class"], *row.get("also_ok", ()))) for name, row in rows
    ]


def score(logs: list[ScoredLog], wrong: list[str] | None = None) -> Counter[str]:
    """Return how many of some logs have each property of COLUMNS; the names of wrong answers are added to `wrong`."""
    counts = Counter(logs=len(logs))
    for log in logs:
        answer = diagnose(log.lines)
        is_right, is_healthy = log.is_right(answer), log.right == (HEALTHY,)
        counts["right"] += is_right
        counts["unknown"] += answer.status == UNKNOWN
        counts["false alarms"] += is_healthy and answer.status != NO_FAILURE
        counts["missed"] += not is_healthy and answer.status == NO_FAILURE
        if answer.first is not None and answer.first.confidence == EXACT:
            counts["exact, right" if is_right else "exact, wrong"] += 1
        if not is_right and wrong is not None:
            wrong.append(f"{log.name}: {answer.first.title if answer.first is not None else answer.status}")
    return counts


def main() -> None:
    """Print the table, and what is wrong."""
    sets = {"recorded": recorded_logs(), "written": written_logs(), "healthy": healthy_logs()}
    sets.update((folder, folder_logs(Path(folder))) for folder in sys.argv[1:])
    print("| set | " + " | ".join(COLUMNS) + " |")
    wrong: list[str] = []
    for name, logs in sets.items():
        counts = score(logs, wrong)
        print(f"| {name} | " + " | ".join(str(counts[column]) for column in COLUMNS) + " |")
    print("\n".join(wrong))


if __name__ == "__main__":
    main()
