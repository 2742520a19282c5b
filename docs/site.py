"""`python docs/site.py FOLDER`: lay out the pages of this repository for the site (`nox -s docs`).

They keep their places, so that their links lead where they lead in the repository. A link to a file that is no page and
no picture, such as `../Dockerfile`, becomes plain text: the site has no files of the repository.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = ROOT / "docs" / "zensical.toml"
PAGES = ("*.md", "docs/*.md", "docs/contributing/*.md", "docs/reference/*.md", "bench/*.md")
OTHERS = ("docs/pictures/*.svg", "docs/pictures/*.png", "docs/site.css", "docs/site.js")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")


def lay_out(folder: Path) -> None:
    """Write the settings, pages and what they show into a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    others = [path for pattern in OTHERS for path in ROOT.glob(pattern)]
    here = {path.resolve() for path in (*pages, *others)}
    for path in pages:
        write(folder / "pages" / path.relative_to(ROOT), linked(path.read_text(encoding="utf-8"), path, here).encode())
    for path in others:
        write(folder / "pages" / path.relative_to(ROOT), path.read_bytes())
    write(folder / SETTINGS.name, SETTINGS.read_bytes())


def linked(text: str, path: Path, here: set[Path]) -> str:
    """Return the text of a page at `path`; links to files of the repository that are not `here` become plain text."""

    def link_or_text(found: re.Match[str]) -> str:
        name = found[2].partition("#")[0]
        target = (path.parent / name).resolve()
        return found[1] if name and target.exists() and target not in here else found[0]

    return LINK.sub(link_or_text, text)


def write(path: Path, content: bytes) -> None:
    """Write a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
