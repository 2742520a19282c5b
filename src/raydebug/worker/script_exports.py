"""What a job's shell script exports reaches the job's workers, as it does where `bash SCRIPT` starts a Ray of its own.

Workers are children of the raylet and have the variables of the job's runtime_env, not those of the driver. Without
this a script's `export PYTHONPATH=FORK` selects a package in the driver alone: Ray sends the functions of its
`__main__`, and the workers import everything else from the environment's packages.
"""

from __future__ import annotations

import base64
import json
import os
import zlib

from raydebug import worker
from raydebug.protocol import variables
from raydebug.protocol.secrets import is_secret

TYPE_CHECKING = False  # as in startup.py
if TYPE_CHECKING:
    from collections.abc import Mapping

# Ray 2.41 to 2.60: _private/runtime_env/constants.py; the job's supervisor gives it to the driver, which merges it with
# the runtime_env of ray.init (_private/worker.py).
JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
# The raylet hands a worker the job's variables in one argument, of which Linux takes 128 KiB.
ARGUMENT_BYTES = 100_000
# Of a shell, of Ray (it chooses GPUs), of the debugger's own set-up.
NOT_SHARED = {"_", "PWD", "OLDPWD", "SHLVL"}
RAYS_OWN = ("RAY", "CUDA_VISIBLE")


def share_exports(_module: object = None) -> None:
    """Add to the job's runtime_env what changed between its entrypoint and this process; never raises.

    A script that becomes its program (`exec python ...`) leaves no process with the variables from before, and shares
    nothing.
    """
    with worker.harmless("workers do not get what the script exports"):
        before, now = _entrypoint_environ(), _environ(os.getpid())
        exported = changed(before, now) if before is not None and now is not None else {}
        if not exported:
            return
        config = json.loads(os.environ[JOB_CONFIG])
        given = config.setdefault("runtime_env", {}).setdefault("env_vars", {})
        given.update(exported)
        if len(json.dumps(config)) > ARGUMENT_BYTES:
            for name in exported:
                del given[name]
            given[variables.EXPORTS] = base64.b64encode(zlib.compress(json.dumps(exported).encode())).decode()
            if len(json.dumps(given)) > ARGUMENT_BYTES:
                raise ValueError(f"{len(exported)} variables are too long for the argument that starts a worker")
        if (shared := json.dumps(config)) == os.environ[JOB_CONFIG]:
            return  # the parent of this process, a driver too, has done it
        os.environ[JOB_CONFIG] = shared
        worker.log(f"workers get what the script exports: {', '.join(sorted(exported))}")


def unpack(given: Mapping[str, str]) -> dict[str, str]:
    """Return what a worker is given with what was packed; ray.init's values win."""
    unpacked = json.loads(zlib.decompress(base64.b64decode(given[variables.EXPORTS])))
    return {**unpacked, **given, variables.EXPORTS: ""}


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a script set or changed and that workers may have. Pure.

    Ray logs a job's variables: secrets stay in the driver.
    """
    return {
        name: value
        for name, value in now.items()
        if before.get(name) != value
        and name not in NOT_SHARED
        and not name.startswith(RAYS_OWN)
        and name.isidentifier()
        and not is_secret(name)
    }


def _entrypoint_environ() -> dict[str, str] | None:
    """Return the variables that the job's entrypoint started with; None if this process is the entrypoint."""
    found, pid = None, os.getppid()
    while pid > 1:
        environ = _environ(pid)
        if environ is None or JOB_CONFIG not in environ:
            break  # the job's supervisor, which Ray started
        found = environ
        with open(f"/proc/{pid}/stat", "rb") as file:
            pid = int(file.read().rpartition(b")")[2].split()[1])
    return found


def _environ(pid: int) -> dict[str, str] | None:
    """Return the variables that a process started with; None if they cannot be read. What is not UTF-8 is left out."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return None
    found = {}
    for entry in entries:
        try:
            name, equals, value = entry.decode().partition("=")
        except UnicodeDecodeError:
            continue
        if equals:
            found[name] = value
    return found
