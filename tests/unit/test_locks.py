"""Locks are read strictly, and one that was edited or no longer fits its inputs is detected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lock_files import asked_pins, read_inputs, verify_lock, write_lock
from raydebug.errors import RaydebugError
from raydebug.settings.flavours import LOCK_BYTES_MAX, digest

A, B = "a" * 64, "b" * 64
BODY = f"""\
colorama==0.4.6 ; sys_platform == 'win32' \\
    --hash=sha256:{A}
ray==2.60.0 \\
    --hash=sha256:{A} \\
    --hash=sha256:{B}
torch==2.13.0+cpu \\
    --hash=sha256:{B}
"""
INPUTS = ["ray==2.60.0"]


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "core.lock"
    write_lock(path, flavour="core", python="3.11 3.12", inputs=INPUTS, body=BODY)
    return path


def refusal(path: Path, inputs: list[str] | None = INPUTS) -> RaydebugError:
    with pytest.raises(RaydebugError) as caught:
        verify_lock(path, inputs)
    assert caught.value.exit_code == 2
    return caught.value


def test_what_was_written_is_read(lock: Path) -> None:
    """A lock gives back flavour, Pythons, every pin and every hash; a fresh one fits its inputs."""
    read = verify_lock(lock, INPUTS)
    assert (read.flavour, read.python) == ("core", "3.11 3.12")
    assert read.pins == {"colorama": "0.4.6", "ray": "2.60.0", "torch": "2.13.0+cpu"}
    assert read.hashes == {"colorama": (A,), "ray": (A, B), "torch": (B,)}
    assert read.elsewhere == {"colorama"}
    assert [child.name for child in lock.parent.iterdir()] == ["core.lock"]


def test_edited_by_hand(lock: Path) -> None:
    """A version changed in the lock itself is an error that names the lock and the way to change a pin."""
    lock.write_text(lock.read_text().replace("ray==2.60.0", "ray==2.61.0"))
    failure = refusal(lock)
    assert failure.code == "lock.edited"
    now = digest(BODY.replace("2.60.0", "2.61.0").splitlines())[:19]
    assert str(failure) == (
        f"error: {lock} was edited by hand\n"
        f"cause: its pins and hashes have {now}, its header says {digest(BODY.splitlines())[:19]}\n"
        f"fix: git checkout -- {lock}; to change a pin, change core.in and run: nox -s lock"
    )


def test_stale(lock: Path) -> None:
    """A lock whose inputs changed since is an error that says what to run; without inputs at hand only edits show."""
    failure = refusal(lock, ["ray==2.61.0"])
    assert failure.code == "lock.stale"
    assert str(failure).splitlines()[0] == f"error: {lock} no longer fits what it was made from"
    assert str(failure).splitlines()[2] == "fix: nox -s lock"
    assert verify_lock(lock).pins["ray"] == "2.60.0"


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        (lambda text: b"", "line 1: it is empty"),
        (lambda text: b"\n \n", "line 1: it is empty"),
        (lambda text: b"\xef\xbb\xbf" + text, "line 1: it has a byte order mark"),
        (lambda text: text.replace(b"\n", b"\r\n"), "line 1: it has a CR line end"),
        (lambda text: text.replace(b"ray==", b"r\0y=="), "line 8: it has a NUL byte"),
        (lambda text: text.replace(b"ray==", b"r\xffy=="), "line 8: byte 0xff is not UTF-8"),
        (lambda text: b"#" * (LOCK_BYTES_MAX + 1), "more than the 4194304 that a file of pins may have"),
    ],
    ids=["empty", "blank", "BOM", "CRLF", "NUL", "latin-1", "huge"],
)
def test_not_plain_text(lock: Path, spoil: object, cause: str) -> None:
    """A lock that is no plain text is refused with the line, before any of it is used."""
    lock.write_bytes(spoil(lock.read_bytes()))
    failure = refusal(lock)
    assert failure.code == "lock.unreadable"
    assert failure.what == f"cannot read {lock}"
    assert cause in failure.cause


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("torch==2.13.0+cpu", "Ray==2.13.0"),
        ("torch==2.13.0+cpu", "ray==2.59.0"),
        ("ray==2.60.0", "ray>=2.60.0"),
        (f"torch==2.13.0+cpu \\\n    --hash=sha256:{B}", "torch==2.13.0"),
        (f"sha256:{B}\ntorch", "sha256:bbb\ntorch"),
        (f"cpu \\\n    --hash=sha256:{B}", f"cpu \\\n    --hash=sha256:{B} \\"),
        ("# flavour: core", "# flavor: core"),
        ("# raydebug lock", "\t# raydebug lock"),
        (BODY, ""),
    ],
)
def test_not_a_lock(lock: Path, old: str, new: str) -> None:
    """A line that `nox -s lock` does not write, a package twice, a pin without hash: the whole lock is refused."""
    text = lock.read_text()
    assert old in text
    lock.write_text(text.replace(old, new))
    failure = refusal(lock)
    assert failure.code == "lock.malformed"
    assert str(failure) == (
        f"error: {lock} is not a lock that `nox -s lock` made\n"
        "cause: its title, its header or its pins have another shape\n"
        f"fix: git checkout -- {lock}"
    )


def test_missing_and_loop(tmp_path: Path) -> None:
    """A missing lock, a folder and a loop of links are refused in words, without a traceback."""
    loop = tmp_path / "loop.lock"
    loop.symlink_to(loop)
    assert refusal(tmp_path / "core.lock").cause == "No such file or directory"
    assert refusal(tmp_path).cause == "Is a directory"
    assert refusal(loop).cause == "Too many levels of symbolic links"
    os.mkfifo(tmp_path / "pipe.lock")
    assert refusal(tmp_path / "pipe.lock").cause == "it is not a regular file"
    with (tmp_path / "huge.lock").open("wb") as sparse:
        sparse.truncate(10**9)
    assert refusal(tmp_path / "huge.lock").cause.startswith("it has 1000000000 bytes, more than the 4194304 ")


def test_inputs_ignore_what_decides_nothing(tmp_path: Path) -> None:
    """Comments and blank lines do not make a lock stale; pins, included files, overrides and dependencies do."""
    (tmp_path / "core.in").write_text("# why\nray[default]==2.60.0  # why\n\n")
    (tmp_path / "cpu.in").write_text("-r core.in\ntorch==2.13.0+cpu\n")
    first = read_inputs("cpu", tmp_path, ["rich>=13"])
    (tmp_path / "core.in").write_text("ray[default]==2.60.0 # another reason\n")
    assert read_inputs("cpu", tmp_path, ["rich>=13"]) == first
    assert asked_pins(first) == {"ray": "2.60.0", "torch": "2.13.0+cpu"}
    assert read_inputs("cpu", tmp_path, ["rich>=14"]) != first
    (tmp_path / "cpu.overrides").write_text("setuptools==77.0.3\n")
    assert read_inputs("cpu", tmp_path, ["rich>=13"]) != first


def test_inputs_that_include_themselves(tmp_path: Path) -> None:
    """A .in file that includes itself is an error with the line, not a recursion."""
    (tmp_path / "core.in").write_text("ray==2.60.0\n-r core.in\n")
    with pytest.raises(RaydebugError) as caught:
        read_inputs("core", tmp_path)
    assert caught.value.cause == "line 2: core.in includes itself"
