"""`raydebug image`, `settings` and `tiny`: make an image, the sizes of containers, a tiny model or dataset."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from raydebug import render
from raydebug.cli.options import Json
from raydebug.errors import UsageError

tiny = typer.Typer(help="Make a tiny model or dataset, offline, in seconds.")

_Seed = Annotated[int, typer.Option(help="The same seed gives the same bytes.")]
# What the user has to decide.
_ENV_HEAD = """\
# Written by `raydebug settings` for this machine: {cores} cores, {memory} GiB, {gpus} GPUs. docker compose reads it
# as .env; .env.example lists what else can be set.

# File with the cluster's token. Make it with: (umask 077; openssl rand -hex 32 > ~/.raydebug-token)
RAYDEBUG_TOKEN_FILE=${{HOME}}/.raydebug-token
# The user of the containers{who}
RAYDEBUG_UID={uid}
RAYDEBUG_GID={gid}
RAYDEBUG_FLAVOUR={flavour}

"""


def image(
    flavour: Annotated[str, typer.Option(help="core (Ray), cpu (Ray, vLLM, verl), cuda or cuda-verl04.")] = "cuda",
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Build every layer anew.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command and do nothing.")] = False,
    sbom: Annotated[
        Path | None, typer.Option("--sbom", help="Write the list of what it has, CycloneDX 1.6.", metavar="FILE")
    ] = None,
) -> None:
    """Build the image of a flavour with docker buildx, in a checkout of raydebug.

    Example: raydebug image --flavour cpu
    """
    from raydebug.cluster.compose.image import build_image

    code = build_image(flavour, Path.cwd(), ["--no-cache"] if no_cache else [], dry_run=dry_run, sbom=sbom)
    raise typer.Exit(code)


def settings(
    flavour: Annotated[
        str | None, typer.Option(help="core, cpu, cuda or cuda-verl04 (default: cuda with a GPU).", metavar="FLAVOUR")
    ] = None,
    workers: Annotated[int, typer.Option(help="Worker nodes on this machine.", min=1, metavar="N")] = 1,
    write: Annotated[
        Path | None, typer.Option("--write", help="Write them to a new file, such as .env.", metavar="FILE")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compute the sizes of containers from this machine, as a commented .env for `docker compose up` by hand.

    Example: raydebug settings --write .env
    """
    from raydebug.cluster.compose.container_user import choose_user
    from raydebug.cluster.compose.preflight import choose_flavour
    from raydebug.cluster.compose.sizing import GIB, as_env, look_at_host, settings_for
    from raydebug.settings.flavours import GPU_FLAVOURS

    host = look_at_host(with_gpus=flavour in (None, *GPU_FLAVOURS))
    chosen = choose_flavour(flavour, workers, has_gpu=bool(host.gpus_bytes) or flavour in GPU_FLAVOURS)
    sizes = settings_for(host, workers=workers)
    if as_json:
        render.out_json({"version": 1, "flavour": chosen, "settings": {one.name: one.value for one in sizes}})
        return
    uid, gid = choose_user("raydebug", Path.cwd())
    who = "" if uid == os.getuid() else ", who must be able to read the token's file: `chown` it to this id"
    text = _ENV_HEAD.format(
        cores=host.cores, memory=host.memory_bytes // GIB, gpus=len(host.gpus_bytes), who=who, uid=uid, gid=gid,
        flavour=chosen,
    )  # fmt: skip
    text += as_env(sizes) + ("" if workers == 1 else f"WORKERS={workers}\n")
    if write is None:
        render.out(text.rstrip())
        return
    _write_new(write, text)
    render.say(f"wrote {write}")


def _write_new(path: Path, text: str) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}",
            cause=error.strerror or str(error),
            fix="name a file that is not there yet; `raydebug settings` alone prints the lines",
            code="settings.unwritable",
        ) from error
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)


@tiny.command()
def model(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to build; it must not exist yet.")],
    like: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Shrink this model's architecture instead of Qwen2's.")
    ] = None,
    vision: Annotated[bool, typer.Option("--vision", help="Build a Qwen2.5-VL, which takes images.")] = False,
    seed: _Seed = 0,
    as_json: Json = False,
) -> None:
    """Build a random model of about 100,000 parameters (400,000 with images), with tokenizer and chat template.

    Example: raydebug tiny model ./model
    """
    from raydebug.tiny.model import build_model

    _one_of(vision, "--vision", like)
    with render.waiting(f"building a tiny model in {folder}"):
        built = build_model(folder, like=like, vision=vision, seed=seed)
    if as_json:
        render.out_json({"version": 1, **asdict(built)})
    else:
        render.say(f"{built.architecture}, {built.parameters:,} parameters, {built.seconds:.1f} s")
        render.out(built.path)


@tiny.command()
def dataset(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to build; it must not exist yet.")],
    like: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Take the first rows of this parquet file or folder.")
    ] = None,
    test_like: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Take test.parquet's rows from this one.")
    ] = None,
    images: Annotated[bool, typer.Option("--images", help="Questions about images, for a model with vision.")] = False,
    rows: Annotated[int, typer.Option(min=1, help="Rows in train.parquet.")] = 16,
    seed: _Seed = 0,
    as_json: Json = False,
) -> None:
    """Build train.parquet, test.parquet and a reward function in verl's format.

    Example: raydebug tiny dataset ./data --rows 16
    """
    from raydebug.tiny.dataset import build_dataset

    _one_of(images, "--images", like)
    with render.waiting(f"building a tiny dataset in {folder}"):
        built = build_dataset(folder, like=like, test_like=test_like, images=images, rows=rows, seed=seed)
    if as_json:
        render.out_json({"version": 1, **asdict(built)})
    else:
        counts = ", ".join(f"{count} {split}" for split, count in built.rows.items())
        render.say(f"{counts} rows, {built.seconds:.1f} s")
        if built.missing:
            render.say(f"note: verl reads {', '.join(built.missing)}, which this dataset has not")
        render.out(built.path)


def _one_of(is_given: bool, option: str, like: Path | None) -> None:
    if is_given and like is not None:
        raise UsageError(
            f"{option} and --like exclude each other",
            cause="--like takes over what the original has, images too",
            fix="leave one of them out",
        )
