"""A real Chromium, and pages of runs for it to open."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

import run_documents
from chromium import NAMES, Chromium, Tab, find_chromium
from raydebug.report.crash import crash_page
from raydebug.report.run import run_page
from raydebug.runs.record import read_document
from snapshot_files import crashed_reward

AXE = "axe-core@4.14.1"  # MPL-2.0; Deque's checker of accessibility


def unavailable(reason: str) -> NoReturn:
    """Skip; where browsers are required (CI), fail."""
    if os.environ.get("REQUIRE_BROWSER") == "1":
        pytest.fail(f"REQUIRE_BROWSER=1, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """The browser; each test opens tabs of its own."""
    program = find_chromium()
    if program is None:
        unavailable(f"there is no Chromium here: none of {', '.join(NAMES)} is on the PATH, and CHROMIUM names none")
    with Chromium(program, tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def show(chromium: Chromium) -> Iterator[Callable[..., Tab]]:
    """Open a page in a tab of its own; which screen it is on, `Chromium.tab` says."""
    opened: list[Tab] = []

    def open_page(page: Path | str, **screen: Any) -> Tab:
        opened.append(chromium.tab(**screen))
        opened[-1].open(page)
        return opened[-1]

    yield open_page
    for tab in opened:
        tab.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages of the documents in tests/support/run_documents.py, each in a run's folder of its own."""
    folder = tmp_path_factory.mktemp("runs")
    texts = {
        "failed": run_page(read_document(run_documents.failed_run())),
        "hostile": run_page(read_document(run_documents.hostile_run())),
        "huge": run_page(read_document(run_documents.huge_run())),
        "empty": run_page(read_document({})),
        "live": run_page(
            read_document({**run_documents.failed_run(), "status": "running", "ended": None}), reload_s=3600.0
        ),
        "crash": crash_page(crashed_reward()),
    }
    paths = {name: folder / name / "report.html" for name in texts}
    for name, path in paths.items():
        path.parent.mkdir()
        path.write_text(texts[name], encoding="utf-8")
        (path.parent / "job.log").write_text("the log of the job\n", encoding="utf-8")
    return paths


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program of axe-core, from npm."""
    if shutil.which("npm") is None:
        unavailable(f"there is no npm here to install {AXE} with")
    folder = tmp_path_factory.mktemp("npm")
    argv = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), AXE]
    subprocess.run(argv, check=True, timeout=120, capture_output=True)
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
