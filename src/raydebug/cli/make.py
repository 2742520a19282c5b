"""`raydebug image` and `tiny`: make an image, a tiny model or dataset."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from raydebug import render
from raydebug.cli.options import Json
from raydebug.errors import UsageError

tiny = typer.Typer(help="Make a tiny model or dataset, offline, in seconds.")

_Seed = Annotated[int, typer.Option(metavar="N", help="The same seed gives the same bytes.")]


def image(
    flavour: Annotated[
        str, typer.Option(metavar="FLAVOUR", help="core (Ray), cpu (Ray, vLLM, verl), cuda or cuda-verl04.")
    ] = "cuda",
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
    rows: Annotated[int, typer.Option(min=1, metavar="N", help="Rows in train.parquet.")] = 16,
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
        files = [f"data.{key}_files={folder / name}.parquet" for key, name in (("train", "train"), ("val", "test"))]
        render.say(f"next: raydebug try --model tiny -- python -m verl.trainer.main_ppo {shlex.join(files)}")


def _one_of(is_given: bool, option: str, like: Path | None) -> None:
    if is_given and like is not None:
        raise UsageError(
            f"{option} and --like exclude each other",
            cause="--like takes over what the original has, images too",
            fix="leave one of them out",
        )
