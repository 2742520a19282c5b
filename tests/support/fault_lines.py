"""What a run of the tests of faults saw: one JSON line a test, and the times that they took, shown at the end.

A test belongs to a case (F8, S10: docs/faults.toml) when its docstring begins with the case's name. `took` notes a time
beside the limit that is wanted, and asserts nothing. RAYDEBUG_TEST_FAULT_LINES=FILE adds the lines to a file;
`python tests/support/fault_lines.py FILE RUNS` says which cases passed in each of so many runs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fault_names import cases_of

LINES = "RAYDEBUG_TEST_FAULT_LINES"
TIMES = "times"

Took = Callable[[str, float, float | None], None]


class Lines:
    """A plugin of pytest that writes and shows them.

    Args:
        writes: False in a worker of pytest-xdist, whose reports come to the process that started it.
    """

    def __init__(self, *, writes: bool = True) -> None:
        self._writes = writes
        self._shown: list[str] = []

    @pytest.fixture
    def took(self, request: pytest.FixtureRequest) -> Took:
        """Note how long something took: what it was, the seconds, and the limit that is wanted (None: none is)."""
        times: list[dict[str, Any]] = []
        request.node.user_properties.append((TIMES, times))

        def note(what: str, seconds: float, limit_s: float | None = None) -> None:
            times.append({"what": what, "seconds": round(seconds, 3), "limit_s": limit_s})

        return note

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        """Keep the cases of a test with its report."""
        report = yield
        report.fault_cases = cases_of(getattr(getattr(item, "function", None), "__doc__", None))
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note what a test measured, and write its line."""
        is_last = report.when == "call" or report.outcome != "passed"
        if not self._writes or not is_last or not report.fault_cases:
            return
        measured = dict(report.user_properties)
        times = measured.pop(TIMES, [])
        name = report.nodeid.rpartition("::")[2]
        self._shown += [f"{name}: {_shown(one)}" for one in times]
        self._shown += [f"{name}: {what} {value}" for what, value in measured.items()]
        if path := os.environ.get(LINES):
            took_s, now = round(report.duration, 3), round(time.time())
            about = {"id": report.fault_cases, "test": report.nodeid, "outcome": report.outcome, "seconds": took_s}
            line = {**about, "times": times, **measured, "at": now}
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Show what was measured: times, and what a test records by pytest's own `record_property`."""
        if self._shown:
            terminalreporter.section("measured")
            for line in self._shown:
                terminalreporter.write_line(line)


def _shown(time_: dict[str, Any]) -> str:
    limit_s = time_["limit_s"]
    wanted = "" if limit_s is None else f" (wanted: {limit_s:g} s{'' if time_['seconds'] <= limit_s else ', MISSED'})"
    return f"{time_['what']} {time_['seconds']:.3f} s{wanted}"


def tally(lines: list[dict[str, Any]], runs: int) -> dict[str, str]:
    """Return by case whether each of its tests passed in each of so many runs, or what it lacks."""
    by_case: dict[str, dict[str, list[str]]] = {}
    for line in lines:
        for case in line["id"]:
            by_case.setdefault(case, {}).setdefault(line["test"], []).append(line["outcome"])
    verdicts = {}
    for case in sorted(by_case, key=lambda name: (name[0], int(name[1:]))):
        short = {test: outcomes for test, outcomes in by_case[case].items() if outcomes.count("passed") < runs}
        verdicts[case] = f"{runs}/{runs}, {len(by_case[case])} tests" if not short else f"not {runs}/{runs}: {short}"
    return verdicts


if __name__ == "__main__":
    read = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    for name, verdict in tally(read, int(sys.argv[2])).items():
        print(name, verdict)
