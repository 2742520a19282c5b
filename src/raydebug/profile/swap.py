"""`--model tiny` and `--data tiny`: tiny replacements of the user's own, made like them where the command runs."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from raydebug import process
from raydebug.errors import RaydebugError, UsageError
from raydebug.process import SAFE_PATH
from raydebug.profile.load import SettingRule
from raydebug.tiny.model import HEADS
from raydebug.trainers.config import expand_home, is_file
from raydebug.trainers.hub import cached_folder
from raydebug.trainers.settings import Settings
from raydebug.trainers.trainer import Program

if TYPE_CHECKING:
    from raydebug.cluster.runner import Runner

_PARTS = {"model": ("torch", "transformers"), "data": ("pyarrow",)}
_OTHER_FORM = {
    "model": "checkpoint of another form, and the model's sizes from the command",
    "data": "file of another form",
}
OURS = ".raydebug"  # below the job's folder: every node of the cluster sees that
ROWS_AT_LEAST = 16
BUILD_LIMIT_S = 300.0

# What a tiny model requires of other settings; applied with the profile, so that the numbers fit each other.
MODEL_RULES = (
    SettingRule("tensor_parallel", "at_most", HEADS, "a tiny model has no more heads"),
    SettingRule("sequence_parallel", "at_most", HEADS, "a tiny model has no more heads"),
    SettingRule("gpu_memory", "at_most", 0.3, "a tiny model leaves the rest to others"),
    SettingRule("truncation", "set", "left", "its tokenizer makes more tokens of the same text"),
    SettingRule("tokenizer", "set", None, "the tiny model brings its own"),
    SettingRule("model_config", "set", None, "the tiny model brings its own"),
)


@dataclass(frozen=True)
class Build:
    """Something tiny to be made before the training starts, by `raydebug.tiny WHAT TARGET` with the options `like`."""

    what: str
    target: Path
    like: tuple[str, ...]

    def make(self, environ: Mapping[str, str]) -> None:
        """Make it, in a process of its own, unless it is there.

        Raises:
            RaydebugError: it could not be made; in the words of `raydebug.tiny`.
        """
        if self.target.exists():
            return
        self.target.parent.mkdir(parents=True, exist_ok=True)
        hide_from_git(self.target.parent.parent)
        argv = [sys.executable, SAFE_PATH, "-m", "raydebug.tiny", self.what, str(self.target), *self.like]
        # Without our variables: no breakpoint and no profile of the job concerns the making.
        plain = {name: value for name, value in environ.items() if not name.startswith("RAYDEBUG_")}
        try:
            process.run(argv, env=plain, timeout_s=BUILD_LIMIT_S, fix=f"run by hand: {' '.join(argv)}")
        except process.CommandFailed as failure:
            if not self.target.exists():  # another rank may have been first
                raise _as_said(failure) from failure


def hide_from_git(ours: Path) -> None:
    """Add a .gitignore to our folder in the user's project."""
    ours.mkdir(exist_ok=True)
    # `x` never writes through a link, which the project may have there.
    with contextlib.suppress(FileExistsError), (ours / ".gitignore").open("x", encoding="utf-8") as file:
        file.write("*\n")


def _as_said(failure: process.CommandFailed) -> RaydebugError:
    """Return the error that `raydebug.tiny` printed."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return RaydebugError.of_json(process.answer_in(failure.output))
    return failure


def require_parts(kinds: Sequence[str], runner: Runner, folder: Path) -> None:
    """Refuse a swap before anything starts if the cluster's Python cannot make tiny models or data.

    Raises:
        RaydebugError: torch, transformers or pyarrow is missing there.
    """
    wanted = [package for kind in kinds for package in _PARTS[kind]]
    if not wanted:
        return
    ask = "import importlib.util as u, sys; print(*(n for n in sys.argv[1:] if u.find_spec(n) is None))"
    missing = runner.run_python(["-c", ask, *wanted], folder).split()
    if missing:
        kind = next(kind for kind in kinds if set(missing) & set(_PARTS[kind]))
        raise UsageError(
            f"a tiny {kind} cannot be made on this cluster",
            cause=f"its Python has no {' and no '.join(missing)} (the core flavour has none)",
            fix="run it on a cluster of the flavour cpu or cuda: docs/contributing/pins.md",
            code="profile.no-tiny",
        )


def swap_in(kinds: Sequence[str], settings: Settings, program: Program, folder: Path) -> list[Build]:
    """Replace the user's model or data by tiny ones, and return what has to be made.

    Raises:
        RaydebugError: nothing tiny can replace the user's data.
    """
    for kind, word in (("model", "model"), ("data", "train_data")):
        if kind in kinds and word not in settings.column:
            raise UsageError(
                f"there is no tiny {kind} for {program.module}",
                cause=f"{program.trainer.name} reads a {_OTHER_FORM[kind]}",
                fix=f"run it without --{kind} tiny",
                code="profile.no-tiny",
            )
    builds = []
    # Absolute: the trainer's workers may run in another folder than a driver that a script has sent elsewhere.
    tiny = folder.resolve() / OURS / "tiny"
    if "model" in kinds:
        builds.append(_swap_model(settings, folder, tiny))
    if "data" in kinds:
        builds.append(_swap_data(settings, program, folder, tiny))
    return builds


def _swap_model(settings: Settings, folder: Path, tiny: Path) -> Build:
    said = settings.text("model") or ""
    named = folder / expand_home(said)
    like = named.resolve() if said and is_file(named / "config.json") else cached_folder(said)
    if like is None:
        target = tiny / "model-qwen2"
        why = f"a random Qwen2 of about 100,000 parameters; {said} is not on this machine, to be made like it"
    else:
        target = tiny / f"model-{_digest(like / 'config.json')}"
        why = "random weights, the same architecture with every size small"
    for word in ("model", "critic_model"):
        if settings.has(word):
            settings.change(word, settings.command.quoted(target), why)
    return Build("model", target, () if like is None else ("--like", str(like)))


def _swap_data(settings: Settings, program: Program, folder: Path, tiny: Path) -> Build:
    rows = max(ROWS_AT_LEAST, 2 * (settings.whole("train_batch_size") or 1))
    train, test = (_first_file(settings.text(word), folder) for word in ("train_data", "val_data"))
    if train is None:
        target, like = tiny / f"data-additions-{rows}", ["--rows", str(rows)]
        why = f"{rows} additions; {settings.text('train_data')} is not on this machine, to take rows from"
        _judge_additions(settings, program, target, why)
    else:
        files = [train, *([test] if test else [])]
        target = tiny / f"data-{_digest(*files, salt=str(rows))}"
        like = ["--rows", str(rows), "--like", str(train), *(["--test-like", str(test)] if test else [])]
        why = f"the first {rows} rows"
    settings.change("train_data", settings.command.quoted(target / "train.parquet"), why)
    if settings.has("val_data") and settings.text("val_data") is not None:
        settings.change("val_data", settings.command.quoted(target / "test.parquet"), why)
    return Build("dataset", target, tuple(like))


def _judge_additions(settings: Settings, program: Program, target: Path, why: str) -> None:
    """Use the tiny dataset's own reward function: the user's expects other questions.

    Raises:
        RaydebugError: this trainer reads other columns.
    """
    if not settings.has("prompt_column"):
        raise UsageError(
            f"there is no tiny data for {program.module}",
            cause=f"{settings.text('train_data')} is not on this machine, and no other rows have the columns it reads",
            fix=f"give data that is there: {settings.column['train_data'].path}=PATH",
            code="profile.no-tiny-data",
        )
    settings.change("prompt_column", "prompt", why)
    if settings.has("reward_function"):
        settings.change("reward_function", settings.command.quoted(target / "reward.py"), "it judges additions")
        settings.change("reward_function_name", "compute_score", "it judges additions")


def _first_file(said: str | None, folder: Path) -> Path | None:
    """Return the first file of a setting such as `[a.parquet,b.parquet]`, if it is on this machine."""
    first = (said or "").strip("[]").split(",")[0].strip().strip("'\"")
    file = folder / expand_home(first)
    return file.resolve() if first and is_file(file) else None


def _digest(*files: Path, salt: str = "") -> str:
    """Return a digest of these files, which changes with any of them."""
    about = [f"{file} {file.stat().st_mtime_ns} {file.stat().st_size}" for file in files]
    return hashlib.sha256("\n".join([*about, salt]).encode()).hexdigest()[:10]
