"""Build a tiny dataset with verl's columns: train.parquet, test.parquet, and a reward function beside them."""

from __future__ import annotations

import inspect
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydebug.errors import UsageError
from raydebug.tiny import appearing, needed_for

TEST_ROWS = 4
REWARD_HEAD = '"""The reward of the tiny dataset."""\n\n\n'
DATA_SOURCE = "raydebug/tiny_addition"
PICTURE_SOURCE = "raydebug/tiny_squares"
SQUARE_PX = 18  # of an image of at least 56 x 56
# Source: verl 0.9.1 utils/dataset/rl_dataset.py (prompt_key) and experimental/reward_loop/reward_loop.py.
NEEDED_COLUMNS = ("data_source", "prompt", "reward_model")


@dataclass(frozen=True)
class TinyDataset:
    """A dataset that was built.

    Args:
        path: its folder, with train.parquet, test.parquet and reward.py.
        columns: the columns of train.parquet.
        missing: columns that verl reads and that are not there.
        rows: how many rows each file has.
    """

    path: str
    columns: list[str]
    missing: list[str]
    rows: dict[str, int]
    seconds: float


def build_dataset(
    target: Path,
    *,
    like: Path | None = None,
    test_like: Path | None = None,
    images: bool = False,
    rows: int = 16,
    seed: int = 0,
) -> TinyDataset:
    """Build a tiny dataset in `target`; the same seed gives the same bytes.

    Args:
        target: the folder to be.
        like: a parquet file, or a folder with train.parquet (and test.parquet), whose first rows are taken.
        test_like: a parquet file whose first rows are taken for test.parquet.
        images: without `like`, questions about an image in the column `images`.
        rows: rows in train.parquet; test.parquet has four, or fewer.
        seed: seeds the questions and images.

    Raises:
        RaydebugError: pyarrow is missing, `like` is no dataset, the target is taken or the disk is full.
    """
    started_s = time.monotonic()
    with needed_for("a tiny dataset", "pyarrow", " (this is the core flavour, which has none)"):
        from pyarrow import parquet
    if like is None:
        draw = _picture_questions if images else _questions
        tables = {"train": draw("train", rows, seed), "test": draw("test", min(rows, TEST_ROWS), seed)}
    else:
        train, test = _files_of(like)
        test = test if test_like is None else _files_of(test_like)[1]
        tables = {"train": _first_rows(train, rows, parquet), "test": _first_rows(test, min(rows, TEST_ROWS), parquet)}
    with appearing(target) as folder:
        for split, table in tables.items():
            parquet.write_table(table, folder / f"{split}.parquet")
        (folder / "reward.py").write_text(REWARD_HEAD + inspect.getsource(compute_score))
    columns = list(tables["train"].column_names)
    return TinyDataset(
        path=os.path.abspath(target.expanduser()),
        columns=columns,
        missing=[name for name in NEEDED_COLUMNS if name not in columns],
        rows={split: table.num_rows for split, table in tables.items()},
        seconds=round(time.monotonic() - started_s, 2),
    )


def _questions(split: str, rows: int, seed: int) -> Any:
    import pyarrow

    draw = random.Random(f"{seed} {split}")  # noqa: S311 - data for a test, not a secret
    table = []
    for index in range(rows):
        first, second = draw.randrange(40), draw.randrange(40)
        question = f"What is {first} plus {second}?"
        table.append(_row(DATA_SOURCE, question, "math", first + second, {"split": split, "index": index}))
    return pyarrow.Table.from_pylist(table)


def _picture_questions(split: str, rows: int, seed: int) -> Any:
    """Return a table of questions about images in verl's schema: how many squares are drawn.

    Prompts and images have several sizes, as those of real data.
    """
    import pyarrow

    draw = random.Random(f"{seed} {split}")  # noqa: S311 - data for a test, not a secret
    table = []
    for index in range(rows):
        squares = draw.randrange(5)
        question = "<image>How many squares are in the image?" + " What is the answer?" * (index % 3)
        images = [{"bytes": _draw_squares(squares, 56 + 28 * (index % 2), draw), "path": None}]
        about = {"split": split, "index": index}
        table.append(_row(PICTURE_SOURCE, question, "counting", squares, about, images=images))
    schema = pyarrow.Table.from_pylist(table).schema
    image = pyarrow.list_(pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())]))
    return pyarrow.Table.from_pylist(table, schema.set(2, pyarrow.field("images", image)))


def _row(source: str, question: str, ability: str, answer: int, about: dict[str, Any], **images: Any) -> dict[str, Any]:
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": question}],
        **images,
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": str(answer)},
        "extra_info": about,
    }


def _draw_squares(squares: int, width_px: int, draw: random.Random) -> bytes:
    import io

    with needed_for("a tiny dataset with images", "pillow"):
        from PIL import Image, ImageDraw
    picture = Image.new("RGB", (width_px, 56), "white")
    pen = ImageDraw.Draw(picture)
    for place in range(squares):
        x, y = 4 + 26 * (place % 2), 4 + 26 * (place // 2)
        pen.rectangle((x, y, x + SQUARE_PX, y + SQUARE_PX), fill=tuple(draw.randrange(200) for _ in range(3)))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def _files_of(like: Path) -> tuple[Path, Path]:
    """Return the train and the test file of an existing dataset; one file serves as both."""
    if like.is_dir():
        train, test = like / "train.parquet", like / "test.parquet"
        if train.is_file():
            return train, test if test.is_file() else train
        cause = f"there is no file '{train}'"
    elif like.is_file():
        return like, like
    else:
        cause = "there is no such file or folder"
    raise _no_dataset(f"'{like}' is not a dataset", cause)


def _first_rows(file: Path, rows: int, parquet: Any) -> Any:
    """Return the first rows of a file, without reading the rest of it."""
    import pyarrow

    try:
        source = parquet.ParquetFile(file)
        first = next(source.iter_batches(batch_size=rows), None)
        batches = [] if first is None else [first]
        return pyarrow.Table.from_batches(batches, schema=source.schema_arrow)
    except pyarrow.ArrowException as failure:
        raise _no_dataset(f"'{file}' cannot be read as parquet", str(failure).splitlines()[0]) from failure


def _no_dataset(what: str, cause: str) -> UsageError:
    fix = "give --like a parquet file, or a folder with train.parquet in it"
    return UsageError(what, cause=cause, fix=fix, code="tiny.no-dataset")


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_options):  # type: ignore[no-untyped-def]
    """Return the share of digits in one response; verl calls this once for each.

    Dense and deterministic: a random model already earns some of it, so a short training shows that it learns.

    Source: verl 0.9.1 experimental/reward_loop/reward_manager/naive.py passes these names.
    """
    text = solution_str or ""
    digits = sum(character.isdigit() for character in text)
    return {"score": digits / max(1, len(text)), "characters": float(len(text))}
