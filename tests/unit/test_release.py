"""A release: the version, the tag and CHANGELOG.md fit together, and the extra `ray` has the tested range."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import raydebug
from raydebug.cli import OF_CLI
from raydebug.settings import flavours

ROOT = Path(__file__).resolve().parents[2]
VERSION = '__version__ = "1.2.3"\n'
CHANGES = (
    "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-12-01\n\n### Added\n\n- a thing\n\n## [1.2.2]\n\n- older\n"
)


def notes(folder: Path, tag: str, *files: str, changes: str = CHANGES, version: str = VERSION) -> tuple[int, str, str]:
    """Run ci/release-notes in a folder that has its inputs only."""
    for name, text in {"CHANGELOG.md": changes, "src/raydebug/__init__.py": version}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "ci").mkdir(exist_ok=True)
    script = Path(shutil.copy(ROOT / "ci" / "release-notes", folder / "ci"))
    done = subprocess.run([str(script), tag, *files], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_notes(tmp_path: Path) -> None:
    """The notes are the section of the version, and the digests."""
    (tmp_path / "sums").write_text("abc  raydebug.whl\n")
    code, said, _ = notes(tmp_path, "v1.2.3", "sums")
    assert (code, said) == (0, "\n### Added\n\n- a thing\n\n```\nabc  raydebug.whl\n```\n")


def test_notes_of_a_trial(tmp_path: Path) -> None:
    """Before the version has its section, a trial takes what is not released yet, and says so."""
    changes = "## [Unreleased]\n\n- new\n\n## [1.2.2]\n\n- older\n"
    code, said, warned = notes(tmp_path, "v1.2.3", "--dry-run", changes=changes)
    assert (code, said) == (0, "\n- new\n")
    assert "CHANGELOG.md has no section for 1.2.3 yet" in warned
    assert notes(tmp_path, "v1.2.3", "--dry-run")[1] == "\n### Added\n\n- a thing\n"


@pytest.mark.parametrize(
    ("tag", "changed", "says"),
    [
        ("v1.2.4", {}, "the tag 'v1.2.4' is not that of this version"),
        ("", {}, "the tag '' is not that of this version"),
        ("v1.2.3", {"version": "x = 1\n"}, "the version is not known"),
        ("v1.2.3", {"changes": "## [Unreleased]\n"}, "CHANGELOG.md says nothing about 1.2.3"),
        ("v1.2.3", {"changes": "## [1.2.3]\n\n## [1.2.2]\n- x\n"}, "CHANGELOG.md says nothing about 1.2.3"),
        ("v1.2.3", {"changes": f"## [Unreleased]\n- late\n{CHANGES}"}, "has lines that belong to no release"),
    ],
)
def test_what_does_not_fit(tag: str, changed: dict[str, str], says: str, tmp_path: Path) -> None:
    """A tag, a version or a changelog that does not fit stops the release, with its fix."""
    code, said, error = notes(tmp_path, tag, **changed)
    assert (code, said) == (1, "")
    assert error.startswith("error: ")
    assert says in error
    assert "\nfix: " in error


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    """Notes without their digests are no notes."""
    code, said, error = notes(tmp_path, "v1.2.3", "nothing.txt")
    assert (code, said, error.splitlines()[0]) == (1, "", "error: the notes lack digests")


@pytest.mark.parametrize(("differs", "code"), [("", 0), ("$PWD", 1), ("$(umask)", 1), ("${TZ}", 1)])
def test_two_builds_that_differ(tmp_path: Path, differs: str, code: int) -> None:
    """A build that depends on its folder, the umask or the time zone is found, and leaves no dist/ behind."""
    builder = tmp_path / "uv"  # in place of uv: what it "builds" depends on what the test plants
    builder.write_text(
        "#!/bin/bash\n"
        'while [ "$1" != --out-dir ]; do shift; done\n'
        'out=$2; mkdir -p "$out" && cd "$3"\n'
        f'echo "a{differs}" >"$out/a.whl"\n'
    )
    builder.chmod(0o755)
    checkout = tmp_path / "checkout"
    (checkout / "ci").mkdir(parents=True)
    (checkout / "packages/raydebug-cpu").mkdir(parents=True)
    (checkout / "packages/raydebug-cpu/pyproject.toml").touch()
    script = Path(shutil.copy(ROOT / "ci" / "dist-twice", checkout / "ci"))
    git = ["git", "-C", str(checkout), "-c", "user.name=a", "-c", "user.email=a@b.invalid"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"]):
        subprocess.run([*git, *words], check=True)
    done = subprocess.run([str(script)], env={**os.environ, "UV": str(builder)}, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert (checkout / "dist" / "SHA256SUMS").exists() == (code == 0)
    assert ("error: two builds of one commit differ" in done.stderr) == (code == 1)


def test_version_has_one_source() -> None:
    """The wheels have the version of the program; CHANGELOG.md begins with what comes next or with this version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert (project["project"]["dynamic"], project["tool"]["hatch"]["version"]["path"]) == (
        ["version"],
        "src/raydebug/__init__.py",
    )
    assert "version" not in project["project"]
    cpu = ROOT / "packages/raydebug-cpu"
    assert f'__version__ = "{raydebug.__version__}"' in (cpu / "src/raydebug_cpu/__init__.py").read_text()
    beside = tomllib.loads((cpu / "pyproject.toml").read_text())["project"]
    assert f"raydebug=={raydebug.__version__}" in beside["dependencies"]
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert headings[0].startswith(("## [Unreleased]", f"## [{raydebug.__version__}]"))


def test_the_wheel_has_the_tested_ranges() -> None:
    """The extra `ray` takes the versions that `check env` calls tested."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in (*project["dependencies"], *project["optional-dependencies"]["ray"]):
        name = re.split(r"[\[>]", line)[0]
        if name in ("ray", "debugpy"):
            oldest, newest = flavours.tested_range(name)
            assert line.endswith(f">={oldest},<={newest}")


def test_the_command_line_knows_its_packages() -> None:
    """Each package of raydebug[cli] is among those whose absence the command explains, by the name of its module."""
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["cli"]
    modules = {"prompt-toolkit": "prompt_toolkit", "pyyaml": "yaml", "nvidia-ml-py": "pynvml", "google-re2": "re2"}
    packages = [re.split(r"[>=<]", line)[0] for line in extra if not line.startswith("shfmt-py")]  # a program
    assert {modules.get(name, name) for name in packages} == set(OF_CLI)
