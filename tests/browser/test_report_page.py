"""The run report in a real Chromium: complete, on any screen, without a network, and fast."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import run_documents
from chromium import Chromium, Tab
from raydebug.report.run import run_page
from raydebug.runs.record import read_document

pytestmark = pytest.mark.timeout(120)

Show = Callable[..., Tab]
PHONE = {"width": 390, "height": 844}
NAMES = ["failed", "hostile", "huge", "empty", "live", "crash"]
# Visible text of each row of the timeline, and the boxes of what is drawn in it.
ROWS = """[...document.querySelectorAll('.track:not(.top)')].map(row => ({
  name: row.querySelector('.what').innerText.replace(/\\s+/g, ' ').trim(),
  figure: row.querySelector('.how').innerText.replace(/\\s+/g, ' ').trim(),
  bars: [...row.querySelectorAll('rect.phase, rect.pause')].map(bar => bar.getBoundingClientRect().width),
  curves: [...row.querySelectorAll('path.curve, path.area')].map(path => path.getTotalLength()),
}))"""


def test_phases_curves_and_pauses(show: Show, pages: dict[str, Path]) -> None:
    """The page of a run shows phases as bars as long as they took, pauses, and curves of steps, memory and GPUs."""
    tab = show(pages["failed"])
    rows = {row["name"]: row for row in tab.ask(ROWS)}
    start, load = rows["start"], rows["model load"]
    assert (start["figure"], load["figure"]) == ("8.40 s 3 %", "33.5 s 10 %")
    assert load["bars"][0] / start["bars"][0] == pytest.approx(33.5 / 8.4, rel=0.05)
    assert len(rows["rollout \N{MULTIPLICATION SIGN}9"]["bars"]) == 9
    assert rows["paused at breakpoints \N{MULTIPLICATION SIGN}3"]["figure"] == "1m25s 26 %"
    assert len(rows["paused at crashes \N{MULTIPLICATION SIGN}1 1 not resumed"]["bars"]) == 1
    assert len(rows["memory f1633e03 10.0.0.4"]["curves"]) == 8  # six bands, the whole node and its halo
    assert all(length > 100 for name, row in rows.items() if name.startswith("GPU") for length in row["curves"])
    shaded = tab.ask("document.querySelectorAll('#bands rect').length")
    assert shaded == 3
    # The bands of the pauses lie behind every row, where the pauses are.
    left = "[...document.querySelectorAll('{}')].map(e => Math.round(e.getBoundingClientRect().left))"
    assert tab.ask("document.querySelectorAll('.plot > use').length") == tab.ask(
        "document.querySelectorAll('.timeline .plot').length - document.querySelectorAll('.pauses .plot').length"
    )
    assert tab.ask(left.format("rect.pause"))[0] > tab.ask(left.format("rect.phase"))[0]


def test_the_head_is_what_one_sees_first(show: Show, pages: dict[str, Path]) -> None:
    """Outcome, first error and first finding are visible without scrolling; a click shows the log."""
    tab = show(pages["failed"])
    seen = "(e => e.getBoundingClientRect().bottom < innerHeight)(document.querySelector('{}'))"
    for part in ("h1", "header .error", ".findings li"):
        assert tab.ask(seen.format(part)), part
    tab.ask("document.querySelector('header .error a').click()")
    tab.wait_for_load()
    assert tab.ask("document.body.innerText").strip() == "the log of the job"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "screen", [{}, PHONE, {"dark": True}, {"media": "print"}], ids=["desk", "phone", "dark", "paper"]
)
def test_nothing_is_fetched_and_nothing_overflows(
    show: Show, pages: dict[str, Path], name: str, screen: dict[str, object]
) -> None:
    """On every screen a page loads one file, violates no policy, has no script error, and fits the width."""
    tab = show(pages[name], **screen)
    asked = [event["request"]["url"] for event in tab.events("Network.requestWillBeSent")]
    assert asked == [pages[name].as_uri()]
    assert tab.events("Log.entryAdded") == []
    assert tab.events("Runtime.exceptionThrown") == []
    assert tab.ask("document.documentElement.scrollWidth <= innerWidth")
    assert tab.ask("document.title") != "owned"
    out = """[...document.querySelectorAll('body *')].filter(e => !e.closest('.wide, svg, .defs, thead')
      && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 120))"""
    assert tab.ask(out) == []


def test_complete_without_a_program(show: Show, pages: dict[str, Path]) -> None:
    """Without JavaScript only the cursor is missing."""
    tab = show(pages["failed"], program=False)
    root = tab.call("DOM.getDocument")["root"]["nodeId"]
    found = {
        part: len(tab.call("DOM.querySelectorAll", nodeId=root, selector=part)["nodeIds"])
        for part in (".track.pauses", "rect.phase", "path.area", ".moment", ".cursor")
    }
    assert found == {".track.pauses": 2, "rect.phase": 31, "path.area": 10, ".moment": 0, ".cursor": 0}
    tab.call("Emulation.setScriptExecutionDisabled", value=False)


def test_page_that_reads_itself_again(show: Show, tmp_path: Path) -> None:
    """The page of a run that goes on shows what was written meanwhile, unless its reader has stopped that."""
    path = tmp_path / "report.html"
    document = {**run_documents.failed_run(), "status": "running", "ended": None}
    path.write_text(run_page(read_document(document), reload_s=0.5), encoding="utf-8")
    tab = show(path)
    assert (
        tab.ask("document.querySelector('.reloads').textContent.trim()") == "read again every 0.5 s, until the run ends"
    )
    path.write_text(run_page(read_document({**document, "status": "succeeded"})), encoding="utf-8")
    tab.wait_for_load()
    assert tab.ask("document.title").startswith("succeeded: ")
    assert tab.ask("document.querySelector('.reloads')") is None
    path.write_text(run_page(read_document(document), reload_s=0.5), encoding="utf-8")
    tab.open(path)
    tab.ask("document.querySelector('.reloads input').click()")
    path.write_text(run_page(read_document({**document, "status": "succeeded"})), encoding="utf-8")
    time.sleep(1.5)
    assert tab.ask("document.title").startswith("running: ")
    assert {one["request"]["url"] for one in tab.events("Network.requestWillBeSent")} == {path.as_uri()}


def test_cursor_tells_of_a_moment(show: Show, pages: dict[str, Path]) -> None:
    """The cursor, by mouse or by keys, describes a moment in text that a screen reader gets too."""
    tab = show(pages["failed"])
    tab.ask("document.querySelector('#timeline').scrollIntoView()")
    box = tab.ask("(r => [r.left, r.width, r.bottom])(document.querySelector('.ruler').getBoundingClientRect())")
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + box[1] * 0.5, y=box[2] + 60)
    drawn = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    tab.ask(drawn)
    told = tab.ask("document.querySelector('output').textContent")
    dot = "  \N{MIDDLE DOT}  "
    assert told == dot.join(["2m42s", "reward", "paused", "step 3 (1m21s)", "memory 70.8 GiB"])
    cursor = tab.ask("document.querySelector('.cursor').getBoundingClientRect().left")
    assert cursor == pytest.approx(box[0] + box[1] * 0.5, abs=2)
    tab.ask("document.querySelector('.moment input').focus()")
    for kind in ("keyDown", "keyUp"):
        tab.call("Input.dispatchKeyEvent", type=kind, key="Home", code="Home", windowsVirtualKeyCode=36)
    tab.ask(drawn)
    assert tab.ask("document.querySelector('.moment input').getAttribute('aria-valuetext')").startswith("0.00 s")


@pytest.mark.parametrize("name", ["failed", "empty", "live", "crash"])
@pytest.mark.parametrize("screen", [{}, {"dark": True}, PHONE], ids=["light", "dark", "phone"])
def test_accessibility(show: Show, pages: dict[str, Path], axe: str, name: str, screen: dict[str, object]) -> None:
    """axe-core finds no violation in the rendered pages: contrast, names, roles, order (WCAG 2.2 A and AA)."""
    tab = show(pages[name], **screen)
    tab.ask("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert tab.violations(axe) == []


def test_many_pauses_and_steps(chromium: Chromium, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page of 5,000 pauses and 10,000 steps opens, and shows all pauses when asked; what it took is printed."""
    begun = time.process_time()
    path = tmp_path / "report.html"
    path.write_text(run_page(read_document(run_documents.huge_run())), encoding="utf-8")
    made_s = time.process_time() - begun
    opened_s = []
    for screen in ({}, PHONE):
        tab = chromium.tab(**screen)
        opened_s.append(tab.open(path))
        assert tab.ask("document.querySelectorAll('.pauses td.id').length") == 5_000
        begun = time.monotonic()
        tab.ask("document.querySelector('#pauses').closest('section').querySelector('details').open = true; 0")
        tab.call("Page.captureScreenshot", format="jpeg", quality=1)
        unfolded_s = time.monotonic() - begun
        assert "10,000" in tab.ask("document.querySelector('.curved .times').textContent")
        tab.close()
    with capsys.disabled():
        print(
            f"\n5,000 pauses, 10,000 steps, {path.stat().st_size / 2**20:.1f} MiB: made in {made_s:.2f} s of a core;"
            f" opened and drawn in {opened_s[0]:.2f} s, on a phone {opened_s[1]:.2f} s;"
            f" all pauses unfolded in {unfolded_s:.2f} s"
        )


def test_a_crash_opens_by_its_frames(show: Show, pages: dict[str, Path]) -> None:
    """The page of a crash shows the frame that raised without a program; a click on another frame opens it."""
    tab = show(pages["crash"])
    shown = "[...document.querySelectorAll('details')].map(one => [one.open, one.querySelector('b').innerText])"
    assert tab.ask(shown)[:2] == [[True, "reward"], [False, "Trainer.step"]]
    assert tab.ask("document.querySelector('pre b').innerText").split()[:3] == ["45", "->", "total"]
    tab.ask("document.querySelectorAll('summary')[1].click()")
    assert tab.ask(shown)[1] == [True, "Trainer.step"]
    assert "\\x1b]0;owned\\x07\\u202egnp.exe" in tab.ask("document.querySelectorAll('details')[1].innerText")
    assert tab.ask("document.title") == "ZeroDivisionError in reward"
    assert tab.ask("document.scripts.length") == 0
