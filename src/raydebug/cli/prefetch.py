"""`raydebug prefetch`: read ahead the files of a training command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from raydebug import render
from raydebug.cli.options import Json, Name, needed_command_of
from raydebug.errors import Exit, RaydebugError

LIMIT_S = 3600.0  # 1 TB at 300 MB/s


def prefetch(
    ctx: typer.Context,
    profile: Annotated[
        str | None, typer.Option(help="As this profile runs the command: debug.", metavar="PROFILE")
    ] = None,
    name: Name = "default",
    as_json: Json = False,
) -> None:
    """Read a training command's model and data into memory (the page cache), so that its start waits for no disk.

    At most half of the free memory is used, and files in memory are not read again. Put the command after `--`.

    Example: raydebug prefetch -- python -m verl.trainer.main_ppo data.train_files=train.parquet
    """
    from raydebug.check.target import find_target

    command = needed_command_of(ctx, "to read ahead for")
    target = find_target(command, Path.cwd(), name, profile)
    request = json.dumps(target.as_request())
    with render.waiting("reading what the command will read"):
        printed = target.runner.run_python(
            ["-m", "raydebug.prefetch", request], target.folder, environ=target.environ, timeout_s=LIMIT_S
        )
    document = _answer(printed)
    if as_json:
        render.out_json({"version": 1, **document})
        return
    _show(document)


def _answer(printed: str) -> dict[str, Any]:
    from raydebug.prefetch import MARK

    lines = [line for line in printed.splitlines() if line.startswith(MARK)]
    document: dict[str, Any] = json.loads(lines[-1].removeprefix(MARK))
    if "refused" in document:
        raise RaydebugError(
            "the command is not understood",
            cause=str(document["refused"]).splitlines()[0],
            fix="raydebug check data -- COMMAND... says more",
            code="prefetch.refused",
            exit_code=Exit.USAGE,
        )
    return document


def _show(document: dict[str, Any]) -> None:
    rows = []
    for one in document["files"]:
        missing = one["size_bytes"] - one["there_bytes"]
        state = "was there" if missing <= 0 else "read" if one["read_bytes"] else "left out: no room"
        rows.append([render.visible(one["path"], keep=""), _size(one["size_bytes"]), state])
    if rows:
        render.table(None, ["file", "size", "state"], rows)
    read = sum(one["read_bytes"] for one in document["files"])
    seconds = document["seconds"]
    if not rows:
        render.say("the command names no file that is here")
    elif read:
        rate = f", {read / seconds / 1e6:.0f} MB/s" if seconds > 0.01 else ""
        render.out(f"read {_size(read)} in {seconds:.1f} s{rate}: the start saves as much")
    else:
        render.out("all of it was in memory already")
    for cache in document["caches"]:
        render.out(
            f"{cache['name']:<14} {_size(cache['bytes']) if cache['exists'] else 'none yet':>9}  {cache['folder']}"
        )


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
