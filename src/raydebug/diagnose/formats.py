"""What a log is stored as, by its first bytes: text or gzip. Other files are refused by name."""

from __future__ import annotations

import codecs
import gzip
import io
import stat
import zlib
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from raydebug.errors import RaydebugError, UsageError

HEAD_BYTES = 4096
# Faults of an archive that is cut off or damaged; a log's own faults are OSError.
CUT_OFF = (OSError, EOFError, zlib.error)
# Beginnings of files: RFC 1952, RFC 8878, xz-file-format.txt 1.1, libmagic 5.45.
_KINDS = (
    (b"\x28\xb5\x2f\xfd", "compressed with zstd"), (b"\xfd7zXZ\x00", "compressed with xz"),
    (b"BZh", "compressed with bzip2"), (codecs.BOM_UTF16_LE, "text in UTF-16"), (codecs.BOM_UTF16_BE, "text in UTF-16"),
    (b"PK\x03\x04", "a zip archive"), (b"\x04\x22\x4d\x18", "an lz4 archive"), (b"\x1f\x9d", "a file of compress"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"), (b"Rar!", "a rar archive"), (b"\x7fELF", "a program"),
    (b"PAR1", "a Parquet file"), (b"%PDF", "a PDF"), (b"\x89PNG", "a picture"), (b"SQLite format 3", "a database"),
)  # fmt: skip
_CONTROLS = bytes([*range(1, 8), 11, *range(14, 27), *range(28, 32), 127])  # those that no terminal output has
MAX_CONTROLS = 0.03  # of the first bytes; compressed bytes have 0.1


def open_log(path: Path, *, pipes: bool = True) -> BufferedIOBase:
    """Open a log of any format; with `pipes` it may be an open pipe, as the shell's `<(...)` gives it.

    Raises:
        OSError: it cannot be read; the error names it.
        RaydebugError: it is no log.
    """
    mode = path.stat().st_mode
    # A named pipe without a writer would hold us for good; those of the shell are open already.
    is_open_pipe = stat.S_ISFIFO(mode) and str(path).startswith(("/dev/fd/", "/dev/stdin", "/proc/self/fd/"))
    if not stat.S_ISREG(mode) and not (pipes and is_open_pipe):
        fix = "copy what it gives to a file, or pipe it: ... | raydebug diagnose -"
        raise _refusal(str(path), "it is not a regular file", fix)
    file = path.open("rb")
    try:
        return decode(file, str(path))
    except CUT_OFF as error:
        file.close()
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise OSError(f"{path}: {error}") from error
    except RaydebugError:
        file.close()
        raise


def decode(file: Any, name: str) -> BufferedIOBase:
    """Return a file as text, unpacked if it is gzip.

    Raises:
        OSError: it cannot be read, or is damaged at its beginning.
        RaydebugError: it is no text.
    """
    file = file if hasattr(file, "peek") else io.BufferedReader(file)
    if file.peek(HEAD_BYTES).startswith(b"\x1f\x8b"):
        below, file = file, gzip.GzipFile(fileobj=file)
        file.myfileobj = below  # which it closes with itself; else it would be left open
    head = file.peek(HEAD_BYTES)[:HEAD_BYTES]
    if head.startswith(codecs.BOM_UTF8):
        file.read(len(codecs.BOM_UTF8))
        return file  # type: ignore[no-any-return]
    kind = next((kind for mark, kind in _KINDS if head.startswith(mark)), "")
    if head[257:262] == b"ustar":
        kind = "a tar archive"
    zeros = sorted((head[::2].count(0), head[1::2].count(0)))
    if not kind and not zeros[0] and zeros[1] * 3 > len(head):  # in every second place: mostly ASCII
        kind = "text in UTF-16"
    text = head.strip(b"\0")  # a log that was cut while a process wrote it begins with zeros
    if not kind and len(text) - len(text.translate(None, _CONTROLS)) > MAX_CONTROLS * len(text):
        kind = "binary data"
    if kind:
        raise _refusal(name, f"it is {kind}", "give it as UTF-8 text, packed with gzip or not, or leave it out")
    return file  # type: ignore[no-any-return]


def _refusal(name: str, cause: str, fix: str) -> RaydebugError:
    return UsageError(f"{name} is not a log that can be read", cause=cause, fix=fix, code="diagnose.no-log")
