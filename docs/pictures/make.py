"""`python docs/pictures/make.py`: make the pictures of the docs from a real run: a crash, its page.

It starts a local cluster of its own, runs train.py (beside this file) until its crash is paused, looks at the crash in
a real terminal, and ends both. Needs raydebug, Ray, pexpect and rich (`nox -s pictures`), and Chromium for the page
(`ci/chromium`).
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pexpect
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, DIMMED_MONOKAI, TerminalTheme
from rich.text import Text

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1] / "tests" / "support"))

from chromium import Chromium, find_chromium  # noqa: E402

RAYDEBUG = str(Path(sys.executable).parent / "raydebug")
NAME, COLUMNS, ROWS, LIMIT_S = "pictures", 92, 60, 120
PROMPT = "(raydebug) "
COMMANDS = ("p rewards", "p max(rewards) - min(rewards)")
THEMES: dict[str, TerminalTheme] = {"light": DEFAULT_TERMINAL_THEME, "dark": DIMMED_MONOKAI}


def main() -> None:
    """Run the program, and write crash-light.svg, crash-dark.svg and report.png beside this file."""
    chromium = find_chromium()
    if chromium is None:
        sys.exit("error: there is no Chromium\ncause: the report page is drawn by it\nfix: run ci/chromium")
    with tempfile.TemporaryDirectory(prefix="project-") as folder:
        shutil.copy(HERE / "train.py", folder)  # its path is in the pictures
        os.chdir(folder)
        environment = {
            **os.environ,
            "XDG_STATE_HOME": f"{folder}/state",
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
        }
        environment.pop("NO_COLOR", None)
        raydebug(environment, "up", "--cluster", "local", "--flavour", "core", "--name", NAME, *_free_ports())
        try:
            report = Path(folder) / "report.html"
            draw(terminal_session(environment))
            raydebug(environment, "report", "--output", str(report))
            photograph(chromium, report, Path(folder))
        finally:
            raydebug(environment, "down", "--name", NAME)


def _free_ports() -> tuple[str, ...]:
    return ("--dashboard-port", "0", "--gateway-port", "0")


def raydebug(environment: dict[str, str], *arguments: str) -> None:
    """Run a command to its end; its output is not part of a picture."""
    subprocess.run([RAYDEBUG, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)


def terminal_session(environment: dict[str, str]) -> str:
    """Return what a terminal shows of `raydebug run` and `raydebug attach`, with its ANSI colours."""
    options = {"env": environment, "dimensions": (ROWS, COLUMNS), "encoding": "utf-8", "timeout": LIMIT_S}
    run = pexpect.spawn(
        RAYDEBUG, ["run", "--name", NAME, "--debugger", "post-mortem", "--", "python", "train.py"], **options
    )
    run.expect("paused .*\n")
    paused = run.after.partition("\n")[0]
    # A dumb terminal: the prompt is then written once, and not drawn again with each key.
    options["env"] = {**environment, "TERM": "dumb", "FORCE_COLOR": "1"}
    attach = pexpect.spawn(RAYDEBUG, ["attach", "--name", NAME], **options)
    shown = ""
    for command in COMMANDS:
        attach.expect_exact(PROMPT)
        shown += attach.before + attach.after
        attach.sendline(command)
    attach.expect_exact(PROMPT)
    shown += attach.before
    attach.sendline("q")
    attach.expect_exact("[b]ack to the debugger: ")
    attach.sendline("y")
    attach.expect(pexpect.EOF)
    run.expect(pexpect.EOF)
    started = "$ raydebug run --debugger post-mortem -- python train.py\n"
    return f"{started}{paused}\n\n$ raydebug attach\n{shown}".replace("\r", "")


def draw(session: str) -> None:
    """Write the session as SVG files, one for a light page and one for a dark one."""
    text = re.sub(r"\x1b\[\?[0-9]+[hl]|\x1b\[[0-9]*[A-HJK]|\x1b[=>]", "", session).rstrip()
    for name, theme in THEMES.items():
        console = Console(record=True, width=COLUMNS, file=Path(os.devnull).open("w"), force_terminal=True)  # noqa: SIM115
        console.print(Text.from_ansi(text))
        svg = console.export_svg(title="raydebug: a crash in one of two actors", theme=theme)
        # No font from the network: a README's pictures fetch nothing.
        svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace("Fira Code, monospace", "monospace")
        (HERE / f"crash-{name}.svg").write_text(svg, encoding="utf-8")


def photograph(chromium: str, page: Path, folder: Path) -> None:
    """Write a picture of the report page's beginning."""
    with Chromium(chromium, folder) as browser:
        tab = browser.tab(width=1100, height=900)
        tab.open(page)
        picture = tab.call("Page.captureScreenshot", format="png")["data"]
    (HERE / "report.png").write_bytes(base64.b64decode(picture))


if __name__ == "__main__":
    main()
