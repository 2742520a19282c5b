"""What raydebug writes and reads in folders of somebody else: no link is followed, and nothing without end is read."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raydebug.cli import app as cli
from raydebug.cli import check
from raydebug.errors import Exit, RaydebugError
from raydebug.profile.swap import hide_from_git
from raydebug.runs.folder import DOCUMENT, LOG, STACKS, RunFolder
from raydebug.runs.record import Run
from raydebug.settings.files import NotPlainText, atomic_write, open_private, read_json, write_named
from raydebug.tiny import appearing
from snapshot_files import crashed_reward, write

MINE = '{"mine": "a key"}\n'
NOT_ROOT = 65534


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file outside of the folder, which its links point to."""
    file = tmp_path / "mine"
    file.write_text(MINE)
    return file


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run that somebody else has made, with a snapshot; the current folder."""
    folder = tmp_path / "theirs"
    write(folder / "snapshots", crashed_reward())
    record = {"version": 1, "id": "r", "kind": "run", "command": ["python", "x.py"], "status": "failed", "log": LOG}
    (folder / DOCUMENT).write_text(json.dumps(record))
    (folder / LOG).write_text("ValueError: x\n")
    monkeypatch.chdir(folder)
    return folder


def raydebug(*words: str) -> RaydebugError | None:
    """Run a verb; return its error of three lines, if any."""
    failure = CliRunner().invoke(cli.app_for(list(words)), list(words)).exception
    assert failure is None or isinstance(failure, RaydebugError | SystemExit), failure
    return failure if isinstance(failure, RaydebugError) else None


def _tiny() -> None:
    with appearing(Path("tiny")) as folder:
        (folder / "config.json").write_text("{}")


SNAPSHOT = "snapshots/c1.snapshot.gz"
# The name that a link is planted at, and the call that writes there without being given it.
DEFAULT_PLACES: dict[str, Callable[[], object]] = {
    "snapshots/c1.html": lambda: raydebug("open", SNAPSHOT, "--html"),
    "report.html": lambda: raydebug("report", "./"),
    "against-theirs.html": lambda: raydebug("report", "./", "./"),
    ".vscode/launch.json": lambda: raydebug("vscode", "--snapshot", SNAPSHOT),
    ".raydebug/.gitignore": lambda: hide_from_git(Path(".raydebug")),
    STACKS: lambda: atomic_write(Path(STACKS), "{}"),
    "state/raydebug/runs/r/run.json": lambda: RunFolder("r").write(Run()),
    "state/raydebug/runs/r/snapshots/c9.snapshot.gz": lambda: RunFolder("r").add_snapshot("c9", b""),
}
NEW_ONLY: dict[str, Callable[[], object]] = {
    ".env": lambda: raydebug("up", "--flavour", "core", "--write-env", ".env"),
    "tiny": _tiny,
    "state/raydebug/runs/r/job.log": lambda: RunFolder("r").add_log("x"),
    "pool.log": lambda: open_private(Path("pool.log")),
}


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("name", [*DEFAULT_PLACES, *NEW_ONLY])
def test_no_output_goes_through_a_link(
    theirs: Path, mine: Path, name: str, exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link at the place of an output is replaced or refused; the file that it points to stays, or is not made."""
    monkeypatch.setenv("XDG_STATE_HOME", str(theirs / "state"))
    if not exists:
        mine.unlink()
    link = theirs / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(mine)
    try:
        (DEFAULT_PLACES | NEW_ONLY)[name]()
    except (OSError, RaydebugError):
        assert link.is_symlink()
    assert (mine.read_text() if mine.exists() else None) == (MINE if exists else None)


def test_a_link_that_the_user_names(tmp_path: Path, theirs: Path, mine: Path) -> None:
    """The file behind a link that is named stays a file of its own: the page replaces it, and the link stays."""
    link = tmp_path / "page.html"
    link.symlink_to(mine)
    for words in (["open", SNAPSHOT, str(link), "--html"], ["report", "./", "--output", str(link)]):
        assert raydebug(*words) is None
        assert link.is_symlink()
        assert mine.read_text().startswith("<!doctype html>")
    check._write(link, "<testsuites/>")
    assert mine.read_text() == "<testsuites/>"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_folder_of_another_user_is_read_only(theirs: Path) -> None:
    """A page is not written beside what it is about when the folder is another user's; a named file is."""
    for folder in (theirs, theirs / "snapshots"):
        os.chown(folder, NOT_ROOT, NOT_ROOT)
    for words in (["open", SNAPSHOT, "--html"], ["report", "./"], ["vscode", "--snapshot", SNAPSHOT]):
        failure = raydebug(*words)
        assert failure is not None
        assert failure.cause.endswith(f"belongs to another user (uid {NOT_ROOT})"), failure.cause
        assert "--output FILE" in failure.fix or "--html OUT" in failure.fix or "--print" in failure.fix
    assert raydebug("report", "./", "--output", "page.html") is None
    assert (theirs / "page.html").is_file()
    (theirs / "link.html").symlink_to(theirs / LOG)
    os.chown(theirs / "link.html", NOT_ROOT, NOT_ROOT, follow_symlinks=False)
    failure = raydebug("report", "./", "--output", "link.html")
    assert failure is not None
    assert failure.cause.endswith("it is a link that another user has made")


def test_a_folder_that_every_user_may_write(theirs: Path) -> None:
    """A folder with mode 0777 is refused, with a sticky bit (as /tmp) it is not."""
    theirs.chmod(0o777)
    failure = raydebug("report", "./")
    assert failure is not None
    assert failure.cause.endswith("every user may write its folder (mode 0777, no sticky bit)")
    theirs.chmod(0o1777)
    assert raydebug("report", "./") is None


def test_the_mode_is_that_of_the_written_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode is set on the open file: its name may be somebody's link by then. A name may be as long as it can be."""
    monkeypatch.setattr(Path, "chmod", None)
    path = tmp_path / ("n" * 255)
    write_named(path, "x", mode=0o640)
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("x", 0o640)
    assert list(tmp_path.iterdir()) == [path]


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    """Whatever the umask, what raydebug writes for itself is its owner's; a file for others obeys the umask."""
    before = os.umask(0)
    try:
        atomic_write(tmp_path / "page", "")
        write_named(tmp_path / "named", "")
        open_private(tmp_path / "log").close()
        RunFolder("r").add_log("x")
        atomic_write(tmp_path / "for-others", "", mode=None)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir() if path.is_file()}
    finally:
        os.umask(before)
    assert modes == {"page": 0o600, "named": 0o600, "log": 0o600, "for-others": 0o666}
    assert stat.S_IMODE((tmp_path / "state/raydebug/runs/r/job.log").stat().st_mode) == 0o600


# Reading


def _deep(path: Path) -> None:
    path.write_text('{"version": 1, "processes": ' + "[" * 100_000 + "]" * 100_000 + "}")


def _huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)  # sparse


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "a FIFO": (os.mkfifo, "it is not a regular file"),
    "/dev/zero": (lambda path: path.symlink_to("/dev/zero"), "it is not a regular file"),
    "a folder": (Path.mkdir, "Is a directory"),
    "a loop of links": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    "deep JSON": (_deep, "it is nested too deeply"),
    "a huge file": (_huge, "it has 1099511627776 bytes, more than the 268435456 that"),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize(
    "words",
    [["report", "{}/"], ["report", "{}/", "{}/"], ["report", "--json", "{}/"], ["run", "--again", "{}/"]],
    ids=["report", "compare", "json", "again"],
)
def test_a_record_that_is_no_file(theirs: Path, kind: str, words: list[str]) -> None:
    """A record that is no file, too big or too deep is refused at once, with what it is."""
    make, cause = BAD[kind]
    (theirs / DOCUMENT).unlink()
    make(theirs / DOCUMENT)
    failure = raydebug(*(word.format(theirs) for word in words))
    assert failure is not None
    assert (failure.what, failure.exit_code) == ("the record of run 'theirs' cannot be read", Exit.USAGE)
    assert failure.cause.startswith(f"{theirs / DOCUMENT}: {cause}")


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("file", [DOCUMENT, STACKS])
def test_what_needs_no_record_goes_on(theirs: Path, kind: str, file: str, state: Path) -> None:
    """A bad record or bad stacks beside logs and snapshots do not keep these from being read and listed."""
    (theirs / file).unlink(missing_ok=True)
    BAD[kind][0](theirs / file)
    assert CliRunner().invoke(cli.app_for(["diagnose"]), ["diagnose", f"{theirs}/"]).exit_code == 1
    assert raydebug("open", SNAPSHOT, "page.html", "--html") is None
    runs = state / "raydebug" / "runs"
    runs.mkdir(parents=True)
    (runs / "r1").symlink_to(theirs)
    assert raydebug("report", "--list") is None


@pytest.mark.parametrize("kind", [kind for kind in BAD if kind != "a loop of links"])  # "does not exist"
def test_saved_stacks_that_are_no_file(tmp_path: Path, kind: str) -> None:
    """`stacks --from` refuses what is no file, too big or too deep; it does not wait for it."""
    make, cause = BAD[kind]
    path = tmp_path / "stacks.json"
    make(path)
    failure = raydebug("stacks", "--from", str(path))
    assert failure is not None
    assert (failure.what, failure.exit_code) == ("this file has no stacks", Exit.USAGE)
    assert failure.cause.startswith(f"{path}: {cause}")


def test_json_that_is_none(tmp_path: Path) -> None:
    """Text that is no JSON, or not UTF-8, is said with its place."""
    for raw, why in ((b"{", "line 1 column 2"), (b'"\xff"', "can't decode")):
        (tmp_path / "x").write_bytes(raw)
        with pytest.raises(NotPlainText, match=why):
            read_json(tmp_path / "x", bytes_max=100, what="a record")
