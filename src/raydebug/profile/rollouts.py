"""`run --record`, `--replay` and `--only`: rollouts that the trainer keeps, and the record of what they belong to.

The driver writes the record beside the rollouts before the training starts, and adds the files and their sizes when it
ends. Rollouts are pickled by the trainer: a record is read from folders of this user alone.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from raydebug import render
from raydebug.errors import RaydebugError, UsageError
from raydebug.profile.load import SettingRule
from raydebug.settings.files import read_json
from raydebug.trainers.settings import Settings
from raydebug.trainers.verl.config_files import as_hydra_reads

RECORD = "raydebug-record.json"
VERSION = 1
RECORD_BYTES_MAX = 16 * 2**20  # a line for each file of the rollouts
MANAGER = "raydebug.trainers.verl.replay.RecordedRollouts"
STEPS = (1, 2)  # the second one has rollouts of weights that the first one has changed
ENDS_BYTES = 1 << 20  # of a large file its size, its first and its last MiB are hashed
# What has to be equal, by our setting names: the rollouts are of these sizes.
SHAPE = ("train_batch_size", "rollouts_per_prompt", "prompt_tokens", "response_tokens")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "vocab.json", "merges.txt")
# Required settings, by our names.
NEEDS = {
    "record": ("reuse_folder",),
    "replay": ("reuse_folder", "trainer_mode"),
    "only-rollout": ("validate_only", "forward_only"),
}
Mode: TypeAlias = Literal["record", "replay", "only-rollout"]

_NOTHING_BESIDE = (
    SettingRule("validate_first", "set", False, "the update comes sooner"),
    SettingRule("validate_every", "set", -1, "no engine generates for it"),
    SettingRule("save_every", "set", -1, "nothing is left on disk"),
    SettingRule("resume", "set", "disable", "every replay begins at step 1"),
)
_ONLY_ROLLOUT = (
    SettingRule("validate_first", "set", True, "validation is where rollouts are without a training"),
    SettingRule("validate_only", "set", True, "the run ends after it"),
    SettingRule("forward_only", "set", True, "no optimizer is built"),
    SettingRule("save_every", "set", -1, "nothing is left on disk"),
)


@dataclass(frozen=True)
class Rollouts:
    """What a run does with rollouts.

    Args:
        mode: keep them, train on kept ones, or make no update.
        folder: of the record; None for `only-rollout`.
    """

    mode: Mode
    folder: Path | None = None

    def as_variable(self) -> str:
        """Return the value of the variable that the driver reads."""
        return f"{self.mode}:{self.folder or ''}"

    @classmethod
    def of_variable(cls, value: str) -> Rollouts | None:
        """Return what `as_variable` said; None for an empty value."""
        mode, _, folder = value.partition(":")
        return cls(cast("Mode", mode), Path.cwd() / folder if folder else None) if mode else None

    def require(self, where: Path) -> None:
        """Look at the folder before anything starts; `where` is the command's.

        Raises:
            RaydebugError: there is something in the folder of a new record, or no record that can be replayed.
        """
        if self.folder is not None and self.mode == "record":
            require_new(where / self.folder)
        elif self.folder is not None:
            read_record(where / self.folder)

    def rules(self) -> tuple[SettingRule, ...]:
        """Return what the run needs of the training's settings.

        Raises:
            RaydebugError: the folder has no record that can be replayed.
        """
        if self.folder is None:
            return _ONLY_ROLLOUT
        kept = (
            SettingRule("reuse_rollouts", "set", True, f"{self.mode}: rollouts of {self.folder}"),
            SettingRule("reuse_folder", "set", as_hydra_reads(self.folder), "where they are"),
        )
        if self.mode == "record":
            return (*kept, SettingRule("reuse_steps", "set", _listed(STEPS), "these steps are kept"))
        record = read_record(self.folder)
        steps = record["steps"]
        return (
            *kept, *_NOTHING_BESIDE,
            *(SettingRule(word, "set", value, "part of the record's path") for word, value in record["names"].items()),
            SettingRule("reuse_steps", "set", _listed(steps), "the steps of the record"),
            SettingRule("steps", "at_most", max(steps), "the record has no more"),
            SettingRule("trainer_mode", "set", "raydebug_replay", "the trainer without a rollout engine"),
            SettingRule("rollout_manager", "set", MANAGER, "nothing is generated"),
        )  # fmt: skip

    def begin(self, settings: Settings, version: str | None) -> None:
        """Begin the record in the driver, or compare it with this training.

        Raises:
            RaydebugError: the trainer has no such cache, the folder has another run's record, or it does not fit.
        """
        lacks = [word for word in NEEDS[self.mode] if not settings.has(word)]
        if lacks:
            option = "only rollout" if self.folder is None else self.mode
            raise _refused(
                f"--{option} is not available with {settings.trainer} {version or '(no version)'}",
                f"this program has no setting for {', '.join(lacks)}; verl's main_ppo has it since 0.9",
                "a later verl, or run without it",
                "run.no-replay",
            )
        if self.folder is None:
            return
        if (settings.text("newer_trainer") or "").lower() == "false":
            key = settings.column["newer_trainer"].path
            raise _refused(
                f"--{self.mode} is not available with the older trainer of {settings.trainer} {version}",
                f"the command sets {key}=False, and that trainer always starts the engine",
                f"leave {key} out",
                "run.no-replay",
            )
        now = describe(settings, version)
        if self.mode == "replay":
            compare(self.folder, read_record(self.folder), now)
            return
        require_new(self.folder)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        (self.folder / RECORD).write_text(json.dumps({**now, "steps": list(STEPS)}, indent=1), encoding="utf-8")
        atexit.register(finish_record, self.folder)


def _listed(steps: Sequence[int]) -> str:
    return f"[{','.join(map(str, steps))}]"


def describe(settings: Settings, version: str | None) -> dict[str, Any]:
    """Return what a record says of its training: sizes, and hashes of model, tokenizer and data."""
    model = Path(os.path.expanduser(settings.text("model") or ""))  # noqa: PTH111 - as the trainer does
    tokenizer = Path(os.path.expanduser(settings.text("tokenizer") or str(model)))  # noqa: PTH111
    data = [word.strip(" '\"") for word in (settings.text("train_data") or "").strip("[]").split(",")]
    return {
        "version": VERSION,
        "trainer": f"{settings.trainer} {version}",
        "names": {word: settings.text(word) for word in ("experiment", "project")},
        "shape": {word: settings.whole(word) for word in SHAPE},
        "model": _hash_files(model, ("config.json", *sorted(path.name for path in model.glob("*.safetensors")))),
        "tokenizer": _hash_files(tokenizer, TOKENIZER_FILES),
        "data": {name: _hash_file(Path(os.path.expanduser(name))) for name in data if name},  # noqa: PTH111
    }


def _hash_files(folder: Path, names: Sequence[str]) -> dict[str, str | None]:
    """Return the hashes of the files that are there; for a name on the Hub the name itself."""
    if not folder.is_dir():
        return {str(folder): None}
    return {name: _hash_file(folder / name) for name in names if (folder / name).is_file()}


def _hash_file(file: Path) -> str | None:
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            found = hashlib.sha256(f"{size} ".encode() + opened.read(ENDS_BYTES))
            opened.seek(max(ENDS_BYTES, size - ENDS_BYTES))
            found.update(opened.read(ENDS_BYTES))
    except OSError:
        return None
    return found.hexdigest()


def _hash_whole(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def require_new(folder: Path) -> None:
    """Refuse a folder for a record that has something in it, or is another user's.

    Raises:
        RaydebugError: it is so.
    """
    if not folder.exists():
        return
    require_unshared(folder)
    if any(folder.iterdir()):
        raise _refused(
            f"'{folder}' has another run's record" if (folder / RECORD).exists() else f"'{folder}' is not empty",
            "a record is made new, and nothing of yours is overwritten", "name another folder, or remove this one",
            "run.record-exists",
        )  # fmt: skip


def finish_record(folder: Path) -> None:
    """Write into a record which files there are, with their sizes; the driver calls it at its end."""
    file = folder / RECORD
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        found = [path for path in sorted(folder.rglob("*")) if path.is_file() and path != file]
        kept = {str(path.relative_to(folder)): [path.stat().st_size, _hash_whole(path)] for path in found}
        # Source: verl 0.9.1 utils/skip/rollout_skip.py: PROJECT/SIZES/STEP/INNER/tq_batch.pt.
        folders = {part for name in kept for part in Path(name).parts[-3:-2]}
        record |= {"files": kept, "steps": [step for step in record["steps"] if str(step) in folders]}
        file.write_text(json.dumps(record, indent=1), encoding="utf-8")
    except (OSError, ValueError) as failure:
        render.say(f"raydebug: the record in {folder} is not complete: {failure}")
        return
    kilobytes = sum(path.stat().st_size for path in found) / 1000
    said = f"steps {', '.join(map(str, record['steps']))}" if record["steps"] else "no step"
    render.say(f"raydebug: recorded {said} in {folder} ({kilobytes:,.0f} kB); train on it with: --replay {folder}")


def read_record(folder: Path) -> dict[str, Any]:
    """Return a record that can be replayed.

    Raises:
        RaydebugError: there is none, it is another user's, it is not complete, or a file of it is cut off.
    """
    again = "record it again: raydebug run --record NEW_FOLDER -- COMMAND"
    try:
        require_unshared(folder)
        record: dict[str, Any] = read_json(folder / RECORD, bytes_max=RECORD_BYTES_MAX, what="a record of rollouts")
        version, files, steps = record["version"], record.get("files"), record["steps"]
        # Names become part of the trainer's paths.
        names = [Path(name) for name in (*record["names"].values(), *(files or ())) if name is not None]
        if any(name.is_absolute() or ".." in name.parts for name in names):
            raise ValueError("a name in it leads out of the folder")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as failure:
        raise _refused(
            f"'{folder}' has no record of rollouts", f"{RECORD}: {failure}", "name the folder that --record made",
            "run.no-record",
        ) from failure  # fmt: skip
    if version != VERSION:
        raise _refused(f"the record in '{folder}' is of version {version}", f"this raydebug reads {VERSION}", again,
                       "run.record-version")  # fmt: skip
    if not files or not steps:
        raise _refused(f"the record in '{folder}' is not complete", "its run ended before a step was kept", again,
                       "run.record-incomplete")  # fmt: skip
    for name, (size, digest) in files.items():
        path = folder / name
        found = path.stat().st_size if path.is_file() else None
        if found == size and _hash_whole(path) == digest:
            continue
        what = "is gone" if found is None else f"has {found:,} bytes" if found != size else "has other bytes"
        raise _refused(
            f"{name} of the record {what}", f"{size:,} bytes were recorded in '{folder}'", again, "run.record-damaged"
        )
    return record


def compare(folder: Path, record: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse a record of another training; other data is a note: the rollouts are the record's.

    Raises:
        RaydebugError: shape, model or tokenizer differ.
    """
    differs = []
    for part in ("trainer", "shape", "model", "tokenizer"):
        old, new = record.get(part), now[part]
        if isinstance(old, dict) and isinstance(new, dict):
            keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
            differs += [
                f"{key}: {old.get(key)} recorded, {new.get(key)} now"
                if part == "shape"
                else f"the {part}'s {key} differs"
                for key in keys
            ]
        elif old != new:
            differs.append(f"{part}: {old} recorded, {new} now")
    if differs:
        raise _refused(
            f"the record in '{folder}' is of another training", "; ".join(differs)[:400],
            "run the command that was recorded, or record this one", "run.record-differs",
        )  # fmt: skip
    if record.get("data") != now["data"]:
        render.say("raydebug: the training data has changed since the record; the recorded rollouts are used")


def require_unshared(folder: Path) -> None:
    """Refuse a folder that another user can have written: what is in it is unpickled.

    Raises:
        RaydebugError: a file or folder in it is another user's, or others may write it.
        OSError: it is not there.
    """
    for path in (folder.resolve(), *folder.rglob("*")):
        state = path.lstat()
        foreign = state.st_uid != os.getuid()
        if path.is_symlink():
            said, fix = "it is a link, which can lead to another user's files", f"copy what it names into {folder}"
        elif foreign:
            said, fix = f"it belongs to user {state.st_uid}", f"chown -R {os.getuid()} {folder}, if you trust it"
        elif state.st_mode & 0o022:
            said, fix = "other users may write it", f"chmod -R go-w {folder}, if you trust it"
        else:
            continue
        raise _refused(
            f"'{path}' can have been written by another user", f"{said}, and it is unpickled", fix, "run.record-foreign"
        )


def _refused(what: str, cause: str, fix: str, code: str) -> RaydebugError:
    return UsageError(what, cause=cause, fix=fix, code=code)
