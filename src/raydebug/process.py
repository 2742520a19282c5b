"""The only place that starts other programs: log the exact command, run it, raise CommandFailed."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from raydebug.errors import Exit, RaydebugError
from raydebug.protocol.secrets import without_secret_arguments

log = logging.getLogger("raydebug.process")

# For each Python that runs our own code: -c and -m put the current folder first on its path, so that a file named
# types.py there would be run by a verb that only reads. Source: docs.python.org/3.11/using/cmdline.html#cmdoption-P
SAFE_PATH = "-P"
OF_GITS_USER = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")  # the rest names a repository


def too_old(said: str) -> str:
    """Return that a Python is too old for SAFE_PATH, where it has printed so; else nothing. Pure."""
    return "its Python is older than 3.11" if f"nknown option: {SAFE_PATH}" in said else ""


def answer_in(printed: str) -> Any:
    """Return what a Python that runs our code has answered: the last line that is JSON; a site may print behind it."""
    *_, answer = (line for line in printed.splitlines() if line.startswith(("{", "[")))
    return json.loads(answer)


def _shown(argv: Sequence[str]) -> str:
    return shlex.join(without_secret_arguments(argv))


class CommandFailed(RaydebugError):
    """A program that we ran ended with an exit code other than 0, or could not start."""

    def __init__(self, argv: Sequence[str], return_code: int, output: str, *, fix: str) -> None:
        last = output.strip().splitlines()[-1:] or ["(it printed nothing)"]
        super().__init__(
            f"'{argv[0]}' failed with exit code {return_code}",
            cause=f"{_shown(argv)} said: {last[0]}",
            fix=fix,
            code="command.failed",
        )
        self.argv = list(argv)
        self.return_code = return_code
        self.output = output


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 60.0,
    fix: str = "run the command by hand to see all that it says",
) -> str:
    """Run a program to its end and return what it printed (stdout and stderr together).

    Args:
        argv: program and arguments, never a shell line.
        env: the whole environment of the program; None inherits ours.
        cwd: where it runs.
        timeout_s: limit in seconds.
        fix: the third line of the error when it fails.

    Raises:
        CommandFailed: it could not start, ran past its limit, or exited with another code than 0.
    """
    log.debug("run: %s", _shown(argv))
    try:
        done = subprocess.run(  # noqa: S603 - argv comes from our own builders, never from a shell string
            list(argv),
            env=None if env is None else dict(env),
            cwd=cwd,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:  # a folder, say, or no program: by the exit codes of a shell
        code = 127 if isinstance(error, FileNotFoundError) else 126
        raise CommandFailed(argv, code, str(error), fix=fix) from error
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(argv, Exit.TIMEOUT, f"still running after {timeout_s:.0f} s", fix=fix) from error
    if done.returncode != 0:
        raise CommandFailed(argv, done.returncode, done.stdout, fix=fix)
    return done.stdout


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    output: IO[bytes] | int,
    cwd: Path | None = None,
    new_session: bool = False,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program in the background, with stdout and stderr in `output`, and these file descriptors of ours."""
    log.debug("start: %s", _shown(argv))
    return subprocess.Popen(  # noqa: S603 - as above
        list(argv),
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=new_session,
        pass_fds=pass_fds,
    )


def git_in(folder: Path, *words: str) -> list[str]:
    """Return a command of git that runs no program which a folder's configuration names; it goes with `gits_env`."""
    return ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-C", str(folder), *words]


def gits_env() -> dict[str, str]:
    """Return this environment for git, without its variables: of a hook or an alias they name another repository.

    Then the .gitignore files of a working folder would not count. Git fetches nothing that a partial clone lacks: the
    address in its configuration may be a program.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name in OF_GITS_USER}
    return {**kept, "GIT_ALLOW_PROTOCOL": "", "GIT_NO_LAZY_FETCH": "1"}


def start_filter(
    argv: Sequence[str], *, errors: int = subprocess.DEVNULL, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a program that reads bytes on stdin and writes others on stdout; both are pipes of ours."""
    log.debug("filter: %s", _shown(argv))
    return subprocess.Popen(  # noqa: S603 - as above
        list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=env
    )


def hand_over(argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> int:
    """Run a program that talks to the user on our terminal, and return its exit code."""
    log.debug("hand over: %s", _shown(argv))
    environment = None if env is None else dict(env)
    done = subprocess.run(list(argv), cwd=cwd, env=environment, check=False)  # noqa: S603 - as above
    return shell_code(done.returncode)


def shell_code(code: int) -> int:
    """Return an exit code as a shell reports it: 128 plus the signal that ended the program, which Python negates."""
    return 128 - code if code < 0 else code


def birth_of(pid: int) -> str:
    """Return what tells a process from an earlier or later one with its id; empty if it is gone.

    Where there is /proc not psutil's `create_time`, which moves there when the machine's clock is set.

    Source: proc(5), `starttime` of /proc/PID/stat: clock ticks since the machine was started, which `boot_id` names.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        if Path("/proc/self/stat").exists():
            return ""
        import psutil

        with contextlib.suppress(psutil.Error):
            return str(psutil.Process(pid).create_time())
        return ""
    after_name = stat.rpartition(b")")[2].split()  # the name may hold any character
    return f"{boot_id} {after_name[19].decode()}"
