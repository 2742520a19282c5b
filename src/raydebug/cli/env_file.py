"""`raydebug up --write-env`: all that `docker compose up` by hand needs: a commented .env, and the cluster's token."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from raydebug import render
from raydebug.errors import UsageError

_HEAD = """\
# Written by `raydebug up --write-env` for this machine: {cores} cores, {memory} GiB, {gpus} GPUs. docker compose reads
# it as .env; .env.example lists what else can be set.
COMPOSE_FILE={files}
RAYDEBUG_FLAVOUR={flavour}
# Your code: /workspace of every node.
RAYDEBUG_PROJECT={project}
# The cluster's token, and the user of the containers, who has to be able to read it.
RAYDEBUG_TOKEN_FILE={token}
RAYDEBUG_UID={uid}
RAYDEBUG_GID={gid}

"""


def write_env(path: Path, flavour: str | None, workers: int, *, as_json: bool) -> None:
    """Write the settings that fit this machine to a new file, and make the token's file where there is none.

    Nothing is started, and Docker is not asked.

    Raises:
        RaydebugError: the file is there already or cannot be written, or there is no such flavour.
    """
    from raydebug.cluster.compose.container_user import choose_user
    from raydebug.cluster.compose.preflight import choose_flavour
    from raydebug.cluster.compose.sizing import GIB, as_env, look_at_host, settings_for
    from raydebug.cluster.private_folders import make_private
    from raydebug.settings.files import compose_dir, state_dir
    from raydebug.settings.flavours import GPU_FLAVOURS

    host = look_at_host(with_gpus=flavour in (None, *GPU_FLAVOURS))
    chosen = choose_flavour(flavour, workers, has_gpu=bool(host.gpus_bytes) or flavour in GPU_FLAVOURS)
    sizes = settings_for(host, workers=workers)
    uid, gid = choose_user("raydebug", Path.cwd())
    token = state_dir() / f"compose-{uid}.token"
    files = ("docker-compose.yml", *(() if chosen in GPU_FLAVOURS else ("docker-compose.cpu.yml",)))
    text = _HEAD.format(
        cores=host.cores,
        memory=host.memory_bytes // GIB,
        gpus=len(host.gpus_bytes),
        files=os.pathsep.join(str(compose_dir() / file) for file in files),
        flavour=chosen,
        project=Path.cwd(),
        token=token,
        uid=uid,
        gid=gid,
    )
    text += as_env(sizes) + ("" if workers == 1 else f"WORKERS={workers}\n")
    _write_new(path, text, "name a file that is not there yet")
    make_private(state_dir())
    if is_new := not token.exists():
        _write_new(token, secrets.token_hex(32), "make a file that this user can write", owner=(uid, gid))
    if as_json:
        render.out_json({"version": 1, "flavour": chosen, "settings": {size.name: size.value for size in sizes}})
    else:
        render.say(
            f"wrote {path}, and the cluster's token to {token}" if is_new else f"wrote {path}; {token} is as it was"
        )
        option = "" if path.name == ".env" else f"--env-file {path.name} "
        where = "" if path.absolute().parent == Path.cwd() else f"in {path.absolute().parent}: "
        render.say(f"next: {where}docker compose {option}up -d --wait")
        render.say(f"next: {where}docker compose {option}run --rm job python your_program.py")


def _write_new(path: Path, text: str, fix: str, owner: tuple[int, int] | None = None) -> None:
    """Write a file that only its owner can read and that is not there yet."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            if owner is not None and os.getuid() == 0:
                os.fchown(handle, *owner)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}",
            cause=error.strerror or str(error),
            fix=fix,
            code="settings.unwritable",
        ) from error
