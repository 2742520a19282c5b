"""`raydebug tiny`: a model and a dataset small enough for any machine, made here."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from raydebug import render

app = typer.Typer(help="Make a tiny model or dataset, offline, in seconds.", no_args_is_help=True)

_Seed = Annotated[int, typer.Option(help="The same seed gives the same bytes.")]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


@app.command()
def model(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to build; it must not exist yet.")],
    like: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Shrink this model's architecture instead of Qwen2's.")
    ] = None,
    seed: _Seed = 0,
    as_json: _Json = False,
) -> None:
    """Build a random model of about 100,000 parameters, with tokenizer and chat template.

    Example: raydebug tiny model ./model
    """
    from raydebug.tiny.model import build_model

    with render.waiting(f"building a tiny model in {folder}"):
        built = build_model(folder, like=like, seed=seed)
    if as_json:
        render.out_json({"version": 1, **asdict(built)})
    else:
        render.say(f"{built.architecture}, {built.parameters:,} parameters, {built.seconds:.1f} s")
        render.out(built.path)


@app.command()
def dataset(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to build; it must not exist yet.")],
    like: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Take the first rows of this parquet file or folder.")
    ] = None,
    test_like: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Take test.parquet's rows from this one.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows in train.parquet.")] = 16,
    seed: _Seed = 0,
    as_json: _Json = False,
) -> None:
    """Build train.parquet, test.parquet and a reward function in verl's format.

    Example: raydebug tiny dataset ./data --rows 16
    """
    from raydebug.tiny.dataset import build_dataset

    with render.waiting(f"building a tiny dataset in {folder}"):
        built = build_dataset(folder, like=like, test_like=test_like, rows=rows, seed=seed)
    if as_json:
        render.out_json({"version": 1, **asdict(built)})
    else:
        counts = ", ".join(f"{count} {split}" for split, count in built.rows.items())
        render.say(f"{counts} rows, {built.seconds:.1f} s")
        if built.missing:
            render.say(f"note: verl reads {', '.join(built.missing)}, which this dataset has not")
        render.out(built.path)
