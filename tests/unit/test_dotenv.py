"""The .env of the compose files: what compose understands passes, what cannot be is refused with its line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raydebug.errors import RaydebugError
from raydebug.settings.dotenv import check_env_file

ROOT = Path(__file__).resolve().parents[2]


def refusal(path: Path) -> str:
    """Return the cause with which a .env is refused."""
    with pytest.raises(RaydebugError) as failure:
        check_env_file(path)
    assert failure.value.what == f"cannot use {path}"
    assert failure.value.exit_code == 2
    return failure.value.cause


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xef\xbb\xbfWORKERS=2\r\nSHM_SIZE=10gb\r\n",
        b"# a comment\n\nexport DASHBOARD_PORT=9265 # beside it\nWORKERS = '2'\n",
        b'HEAD_MEMORY="1.5g"\nTMP_SIZE=536870912\nHEAD_CPUS=\nDASHBOARD_PORT=${OTHER}\n',
        b"UNKNOWN=anything at all\nRAYDEBUG_DEBUGGER=post-mortem\nRAYDEBUG_FLAVOUR=cpu\n",
    ],
    ids=["empty", "BOM and CRLF", "comments", "forms of values", "words"],
)
def test_what_compose_understands(tmp_path, content):
    """Whatever docker compose reads as it is meant passes, and so does no .env at all."""
    (tmp_path / ".env").write_bytes(content)
    check_env_file(tmp_path / ".env")
    check_env_file(tmp_path / "none")


def test_the_example_passes(tmp_path):
    """.env.example is a .env, also with every line of it in force."""
    text = (ROOT / ".env.example").read_text()
    (tmp_path / ".env").write_text(text)
    check_env_file(tmp_path / ".env")
    lines = (line.removeprefix("#") if line.startswith("#") and "=" in line.split(" ")[0] else line
             for line in text.splitlines())  # fmt: skip
    (tmp_path / ".env").write_text("\n".join(lines))
    check_env_file(tmp_path / ".env")


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"A=1\nB=x\0y\n", "line 2: it has a NUL byte"),
        (b"A=1\nB=\xff\n", "line 2: byte 0xff is not UTF-8"),
        (b"A=1\nB\n", "line 2: it is not KEY=VALUE"),
        (b"A=1\n\tDASHBOARD PORT=1\n", "line 2: a key has letters, digits and '_' alone"),
        (b"A=1\n#\n\nA=2\n", "line 4: A is set again, first on line 1"),
        (b"A=1\nB='x\n", "line 2: the quote of B does not end on its line"),
        (b"WORKERS=two\n", "line 1: WORKERS=two is not a whole number"),
        (b"A=1\nDASHBOARD_PORT=many\n", "line 2: DASHBOARD_PORT=many is not a port"),
        (b"SHM_SIZE=banana\n", "line 1: SHM_SIZE=banana is not a size, such as 10gb"),
        (b"RAYDEBUG_FLAVOUR=gpu\n", "line 1: RAYDEBUG_FLAVOUR=gpu is not one of core, cpu, cuda, cuda-verl04"),
    ],
)
def test_f50_lines_that_cannot_be(tmp_path, content, cause):
    """F50: a line that docker compose would take for something else is refused with its number, exit code 2."""
    (tmp_path / ".env").write_bytes(content)
    assert refusal(tmp_path / ".env") == cause


@pytest.mark.timeout(10)
def test_f50_files_that_are_no_text(tmp_path):
    """F50: a loop of links, a pipe, a folder and 1 GB are refused without being read."""
    path = tmp_path / ".env"
    path.symlink_to(path)
    assert refusal(path) == "Too many levels of symbolic links"
    path.unlink()
    os.mkfifo(path)
    assert refusal(path) == "it is not a regular file"
    path.unlink()
    path.mkdir()
    assert refusal(path) == "Is a directory"
    path.rmdir()
    with path.open("wb") as sparse:
        sparse.truncate(10**9)
    assert refusal(path) == "it has 1000000000 bytes, more than the 65536 that a .env may have"
