"""`raydebug up --write-env`: the sizes of containers as a commented .env, for `docker compose up` by hand."""

from __future__ import annotations

import os
from pathlib import Path

from raydebug import render
from raydebug.errors import UsageError

# What the user has to decide.
_HEAD = """\
# Written by `raydebug up --write-env` for this machine: {cores} cores, {memory} GiB, {gpus} GPUs. docker compose reads
# it as .env; .env.example lists what else can be set.

# File with the cluster's token. Make it with: (umask 077; openssl rand -hex 32 > ~/.raydebug-token)
RAYDEBUG_TOKEN_FILE=${{HOME}}/.raydebug-token
# The user of the containers{who}
RAYDEBUG_UID={uid}
RAYDEBUG_GID={gid}
RAYDEBUG_FLAVOUR={flavour}

"""


def write_env(path: Path, flavour: str | None, workers: int, *, as_json: bool) -> None:
    """Write the sizes that fit this machine to a new file; nothing is started, and Docker is not asked.

    Raises:
        RaydebugError: the file is there already or cannot be written, or there is no such flavour.
    """
    from raydebug.cluster.compose.container_user import choose_user
    from raydebug.cluster.compose.preflight import choose_flavour
    from raydebug.cluster.compose.sizing import GIB, as_env, look_at_host, settings_for
    from raydebug.settings.flavours import GPU_FLAVOURS

    host = look_at_host(with_gpus=flavour in (None, *GPU_FLAVOURS))
    chosen = choose_flavour(flavour, workers, has_gpu=bool(host.gpus_bytes) or flavour in GPU_FLAVOURS)
    sizes = settings_for(host, workers=workers)
    uid, gid = choose_user("raydebug", Path.cwd())
    who = "" if uid == os.getuid() else ", who must be able to read the token's file: `chown` it to this id"
    text = _HEAD.format(
        cores=host.cores, memory=host.memory_bytes // GIB, gpus=len(host.gpus_bytes), who=who, uid=uid, gid=gid,
        flavour=chosen,
    )  # fmt: skip
    text += as_env(sizes) + ("" if workers == 1 else f"WORKERS={workers}\n")
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}",
            cause=error.strerror or str(error),
            fix="name a file that is not there yet",
            code="settings.unwritable",
        ) from error
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    if as_json:
        render.out_json({"version": 1, "flavour": chosen, "settings": {size.name: size.value for size in sizes}})
    else:
        render.say(f"wrote {path}")
