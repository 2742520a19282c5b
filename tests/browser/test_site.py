"""The site of the docs as `nox -s docs` has built it: links, search, looks; it fetches nothing from elsewhere."""

from __future__ import annotations

import functools
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from chromium import Tab

SITE = Path(__file__).resolve().parents[2] / "build" / "docs" / "site"
PAGES = ("", "docs/05-cli/", "docs/06-troubleshooting/", "docs/09-hangs/", "bench/RESULTS/")
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
SCREENS: dict[str, dict[str, object]] = {
    "light": {},
    "dark": {"dark": True},
    "narrow": {"width": 390, "height": 844},
}
pytestmark = [pytest.mark.timeout(240), pytest.mark.skipif(not SITE.is_dir(), reason="no site here: nox -s docs")]


class Page(HTMLParser):
    """What a page refers to, and the ids that links may lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect."""
        for name, value in attrs:
            if value and name in ("href", "src", "srcset"):
                self.targets.append(value)
            elif value and name in ("id", "name"):
                self.ids.add(value)


@functools.cache
def page(path: Path) -> Page:
    """Return a built page."""
    return Page(path.read_text(encoding="utf-8"))


def broken(path: Path) -> list[str]:
    """Return the targets of a page that are not there: pages, pictures, anchors."""
    found = []
    for target in page(path).targets:
        address = urllib.parse.urlsplit(target)
        if address.scheme or address.netloc:
            continue
        place = (path.parent / urllib.parse.unquote(address.path)).resolve() if address.path else path
        file = place / "index.html" if place.is_dir() else place
        anchor = urllib.parse.unquote(address.fragment)
        if not file.is_file() or (anchor and file.suffix == ".html" and anchor not in page(file).ids):
            found.append(target)
    return found


def test_links() -> None:
    """Every link, picture and anchor of the built pages is there."""
    pages = [path for path in SITE.rglob("*.html") if path.name != "404.html"]
    assert len(pages) > 20
    assert {str(path.relative_to(SITE)): wrong for path in pages if (wrong := broken(path))} == {}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The site, served on loopback."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.mark.parametrize("screen", SCREENS.values(), ids=SCREENS.keys())
def test_looks(show: Callable[..., Tab], address: str, axe: str, screen: dict[str, object]) -> None:
    """On each screen: its colours, nothing wider than the window, no fault for axe-core, no error, no fetch."""
    for name in PAGES:
        tab = show(address + "404.html", **screen)
        tab.ask("localStorage.clear()")  # the theme keeps the colours of the first screen
        tab.open(address + name)
        wait_until(tab, f"{BACKGROUND} !== 'rgba(0, 0, 0, 0)'")  # the load that is waited for may be the first page's
        background = tab.ask(BACKGROUND)
        lightest = max(map(int, re.findall(r"\d+", background)[:3]))
        assert (lightest < 80) == bool(screen.get("dark")), background
        assert tab.ask("document.documentElement.scrollWidth <= innerWidth"), name
        assert tab.violations(axe) == [], name
        asked = [event["request"]["url"] for event in tab.events("Network.requestWillBeSent")]
        assert [url for url in asked if not url.startswith((address, "data:"))] == []
        assert tab.events("Runtime.exceptionThrown") == []


def test_search(show: Callable[..., Tab], address: str) -> None:
    """A word that one types leads to the page that has it."""
    tab = show(address)
    tab.ask("document.querySelector('.md-search__button').click()")
    wait_until(tab, "document.activeElement.shadowRoot?.activeElement?.tagName === 'INPUT'")
    tab.call("Input.insertText", text="max_prompt_length")
    results = "[...document.activeElement.shadowRoot.querySelectorAll('a')].map(link => link.href)"
    wait_until(tab, f"{results}.length > 0")
    assert any(link.startswith(f"{address}docs/03-checks/") for link in tab.ask(results))


def wait_until(tab: Tab, condition: str) -> None:
    """Wait for a condition in a page."""
    for _ in range(100):
        if tab.ask(condition):
            return
        time.sleep(0.1)
    raise AssertionError(f"10 s and not: {condition}")
