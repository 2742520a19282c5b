"""What a log is stored as, by its first bytes: text, UTF-16, gzip, xz, bzip2, zstd. Other files are refused by name."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import shutil
import stat
import threading
import zlib
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from raydebug import process
from raydebug.errors import RaydebugError, UsageError

HEAD_BYTES = 4096
MAX_LAYERS = 3  # of compression
# Faults of an archive that is cut off or damaged; a log's own faults are OSError.
CUT_OFF = (OSError, EOFError, zlib.error, lzma.LZMAError)
# Beginnings of files: RFC 1952, RFC 8878, xz-file-format.txt 1.1, libmagic 5.45.
_ZSTD = b"\x28\xb5\x2f\xfd"
_KINDS = (
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
    """Return a file as UTF-8 text.

    Raises:
        OSError: it cannot be read, or is damaged at its beginning.
        RaydebugError: it is no text.
    """
    for _ in range(MAX_LAYERS):
        if not hasattr(file, "peek"):
            file = io.BufferedReader(file)
        head = file.peek(HEAD_BYTES)[:HEAD_BYTES]
        if head.startswith(b"\x1f\x8b"):
            file = _Layer(gzip.GzipFile(fileobj=file), file)
        elif head.startswith(b"\xfd7zXZ\x00"):
            file = _Layer(lzma.LZMAFile(file), file)  # noqa: SIM115 - the caller closes it
        elif head.startswith(b"BZh") and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
            file = _Layer(bz2.BZ2File(file), file)
        elif head.startswith(_ZSTD):
            file = io.BufferedReader(_Zstd(file, name))
        else:
            break
    if head.startswith(codecs.BOM_UTF8):
        file.read(len(codecs.BOM_UTF8))
        return file  # type: ignore[no-any-return]
    if encoding := _utf16(head):
        return _Recoded(file, encoding)
    kind = next((kind for mark, kind in _KINDS if head.startswith(mark)), "")
    if head[257:262] == b"ustar":
        kind = "a tar archive"
    text = head.strip(b"\0")  # a log that was cut while a process wrote it begins with zeros
    if not kind and len(text) - len(text.translate(None, _CONTROLS)) > MAX_CONTROLS * len(text):
        kind = "binary data"
    if kind:
        raise _refusal(name, f"it is {kind}", "give its text: unpack it, or leave it out")
    return file  # type: ignore[no-any-return]


def _utf16(head: bytes) -> str:
    """Return the kind of UTF-16 that bytes are; empty if they are none."""
    if b"\0" not in head:
        return ""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    even, odd = head[::2].count(0), head[1::2].count(0)  # a zero in every second place: mostly ASCII
    if max(even, odd) * 3 > len(head) and not min(even, odd):
        return "utf-16-le" if odd else "utf-16-be"
    return ""


class _Layer(BufferedIOBase):
    """What an archive holds; the modules of the standard library leave the file below them open."""

    def __init__(self, archive: Any, below: BufferedIOBase) -> None:
        self.peek, self.read, self.read1 = archive.peek, archive.read, archive.read1  # type: ignore[method-assign]
        self._files = archive, below

    def close(self) -> None:
        for file in self._files:
            file.close()
        super().close()


class _Recoded(BufferedIOBase):
    """A file of another encoding as UTF-8."""

    def __init__(self, file: BufferedIOBase, encoding: str) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")

    def read1(self, size: int = -1, /) -> bytes:
        """Return the next text; empty at the end."""
        while data := self._file.read1(size):
            if text := self._decoder.decode(data):
                return text.encode("utf-8", "replace")
        return self._decoder.decode(b"", final=True).encode("utf-8", "replace")

    def close(self) -> None:
        self._file.close()
        super().close()


class _Zstd(io.RawIOBase):
    """What the program zstd makes of a file: Python has no zstd before 3.14."""

    def __init__(self, file: BufferedIOBase, name: str) -> None:
        program = shutil.which("zstd")
        if program is None:
            raise _refusal(
                name, "it is compressed with zstd, and there is no program zstd to read it",
                "install zstd, or unpack it on another machine: unzstd FILE",
            )  # fmt: skip
        self._file = file
        self._program = process.start_filter([program, "-dcq"])
        threading.Thread(target=self._feed, daemon=True).start()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        assert self._program.stdout is not None
        data = self._program.stdout.read1(len(buffer))  # type: ignore[attr-defined]  # a BufferedReader
        buffer[: len(data)] = data
        if not data and self._program.wait():
            raise EOFError("zstd cannot read it to its end")
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._program.kill()
            if self._program.stdout is not None:
                self._program.stdout.close()
            self._program.wait()
            self._file.close()
        super().close()

    def _feed(self) -> None:
        assert self._program.stdin is not None
        with contextlib.suppress(OSError, ValueError), self._program.stdin as pipe:  # either end may be closed
            shutil.copyfileobj(self._file, pipe)


def _refusal(name: str, cause: str, fix: str) -> RaydebugError:
    return UsageError(f"{name} is not a log that can be read", cause=cause, fix=fix, code="diagnose.no-log")
