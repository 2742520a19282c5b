"""The plan of a run: the config of a command, composed by its trainer, the GPUs it asks for, and the files it reads."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from raydebug.check.probes import Facts
from raydebug.errors import UsageError
from raydebug.protocol import variables as variable_names
from raydebug.trainers.checks import Checks
from raydebug.trainers.config import CannotCompose, Composed, TrainingConfig, first_missing
from raydebug.trainers.registry import checks_of, recognise
from raydebug.trainers.trainer import Program
from raydebug.trainers.verl.checks import ASKED, PpoChecks, rules_of

# Source: Hydra 1.3 _internal/utils.py get_args_parser. Deeper configs are rare, and the folder may be large.
_FOLDERS, _DEPTHS = ("--config-path", "-cp", "--config-dir", "-cd"), ("*.yaml", "*/*.yaml", "*/*/*.yaml")

SOURCES_MAX = 500
TEXTS, TEXT_BYTES_MAX = ("*.json", "*.jinja", "*.txt"), 256 * 1024**2  # of a model; tokenizer.json has up to 40 MiB
# What a package of verl imports first. Source: verl 0.9.1 __init__.py, protocol.py.
VERDICT_NEEDS = ("verl", "ray", "torch", "tensordict", "transformers")
NOT_OWN = {"site-packages", "node_modules", "__pycache__"}


def gather(request: Facts) -> Facts:
    """Return the GPUs and, `with_files`, the files of a run."""
    config = compose(request).config
    gpus = {} if config.ranks is None else {"gpus": config.ranks}
    if not request["with_files"]:
        return gpus
    reward = config.get("reward_file")
    files = [path for word in ("train_data", "val_data") for path in paths_of(config.get(word))]
    read = read_by(request, *files, reward, config.get("model"), config.get("tokenizer"), *_sources())
    return {**gpus, "read": read}


def _sources() -> list[Path]:
    """Return the Python files of the folder that a command runs in: any of them may be a part of it."""
    found = (
        p for p in Path.cwd().rglob("*.py") if not any(part.startswith(".") or part in NOT_OWN for part in p.parts)
    )
    return sorted(islice(found, SOURCES_MAX))


@dataclass(frozen=True)
class Plan:
    """A command that a probe looks at.

    Args:
        checks: the rules of its program.
        composed: its config, with the profile applied.
        config: the same by raydebug's words.
        lacking: packages that are missing here -> what was not done without them.
    """

    program: Program
    checks: Checks
    composed: Composed
    config: TrainingConfig
    lacking: dict[str, list[str]] = field(default_factory=dict)

    @property
    def rules(self) -> PpoChecks | None:
        """The rules of its program, where raydebug has some."""
        return rules_of(self.checks)

    def has(self, part: str, *packages: str) -> bool:
        """Return whether these packages are installed; without one of them, a part of the check is not done."""
        missing = first_missing(*packages)
        if missing is not None:
            self.lacking.setdefault(missing, []).append(part)
        return missing is None

    def verdict(self) -> dict[str, str] | None:
        """Return the trainer's own refusal of the config, if its library is here to be asked."""
        if self.rules is None or self.program.module not in ASKED:
            return None
        if not self.has("the trainer's own verdict on the config", "omegaconf", *VERDICT_NEEDS):
            return None
        return self.rules.verdict(self.composed)

    def as_facts(self) -> Facts:
        """Return what `check/config.py` judges of it."""
        composed = self.composed
        return {
            "config": composed.values,
            "unread": composed.unread,
            "unknown": composed.unknown,
            "lacking": self.lacking,
            "program": self.program.module,
            "trainer": self.program.trainer.name,
        }


def compose(request: Facts) -> Plan:
    """Return a command's program and its config.

    Args:
        request: `command`, the argv; `profile`, applied to it first if it is not None; `trainer`, of the command.

    Raises:
        CannotCompose: the trainer would refuse the command, or it runs no training that can be checked.
    """
    command, search = list(request["command"]), search_path()
    program = program_of(request)
    if program is None:
        raise CannotCompose("NoTrainer", "the command is not a training that can be checked")
    if request.get("profile"):
        from raydebug.profile.apply_profile import apply_profile

        applied = apply_profile(
            command, profile=request["profile"], environ=os.environ, folder=Path.cwd(), search=search
        )
        command = [*command[: program.arguments_at], *applied.settings.command.arguments]
    checks = checks_of(program.trainer, program.name)
    composed = checks.compose(program, command, folder=Path.cwd(), search=search)
    config = TrainingConfig(composed.values, checks.keys_of(composed.values))
    for word in ("model", "tokenizer"):
        require_plain_files(Path(str(config.get(word))).expanduser())
    return Plan(program, checks, composed, config)


def require_plain_files(folder: Path) -> None:
    """Refuse a model whose texts are a pipe, a device or without end: transformers would read on until memory ends.

    Raises:
        RaydebugError: names the first.
    """
    for file in sorted(path for ending in TEXTS for path in folder.glob(ending) if path.exists()):
        about = file.stat()
        if stat.S_ISREG(about.st_mode) and about.st_size <= TEXT_BYTES_MAX:
            continue
        much = f"it has {about.st_size:,} bytes, and no tokenizer has more than {TEXT_BYTES_MAX:,}"
        raise UsageError(
            f"{file} cannot be read",
            cause=much if stat.S_ISREG(about.st_mode) else "it is not a regular file",
            fix="look at what it is; download the model again",
            code="model.not-plain",
        )


def load_tokenizer(config: TrainingConfig) -> Any:
    """Return the model's tokenizer, from disk or the Hub's cache; nothing is fetched, no code of the model is run.

    Source: verl 0.9.1 workers/config/model.py: tokenizer_path, else hf_config_path, else path; custom_chat_template.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
    from transformers import AutoTokenizer

    path = os.path.expanduser(str(config.get("tokenizer") or config.get("model")))  # noqa: PTH111
    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=bool(config.get("trust_remote_code")))
    if config.get("chat_template"):
        tokenizer.chat_template = config.get("chat_template")
    return tokenizer


def program_of(request: Facts) -> Program | None:
    """Return the program of a request's command, as the one that asks has recognised it."""
    if request.get("trainer"):
        os.environ[variable_names.TRAINER] = request["trainer"]
    return recognise(request["command"], folder=Path.cwd(), search=search_path())


def trainer_version(request: Facts) -> str:
    """Return the version of a command's trainer, as its own files or its distribution say; empty if it is unknown."""
    program = program_of(request)
    if program is None:
        return ""
    installed = program.trainer.read_config(program, request["command"], folder=Path.cwd(), search=search_path())
    return installed.version or ""


def search_path() -> list[str]:
    """Return where the program's Python looks for its modules, in order: ours leaves the folder out (`SAFE_PATH`)."""
    return sys.path if os.environ.get("PYTHONSAFEPATH") else ["", *sys.path]


def variables() -> dict[str, str]:
    """Return the variables that rules about a config need; of a secret only whether it is set."""
    names = ("VERL_PLATFORM", "VLLM_CPU_KVCACHE_SPACE", "WANDB_MODE")
    found = {name: os.environ[name] for name in names if name in os.environ}
    return {**found, **({"WANDB_API_KEY": "(set)"} if os.environ.get("WANDB_API_KEY") else {})}


def read_by(request: Facts, *more: Any) -> list[str]:
    """Return the files and folders that a result depends on, those of packages and of the command's configs included.

    Args:
        request: its `command` may name folders of configs.
        more: the probe's own paths; None is left out.
    """
    packages = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    folders = [Path(value).expanduser() for name, value in _options(request["command"]) if value and name in _FOLDERS]
    said = [*folders, *(file for folder in folders for depth in _DEPTHS for file in folder.glob(depth))]
    modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    here = os.getcwd() + os.sep  # noqa: PTH109 - a prefix of text
    own = [file for file in modules if isinstance(file, str) and file.startswith(here)]
    every = [*packages, *map(str, said), *own, *(str(path) for path in more if path is not None)]
    return sorted({os.path.abspath(os.path.expanduser(path)) for path in every})  # noqa: PTH111


def _options(command: list[str]) -> Iterator[tuple[str, str]]:
    for word, after in zip(command, [*command[1:], ""], strict=True):
        option, sign, value = word.partition("=")
        yield option, value if sign else after


def paths_of(value: Any) -> list[str]:
    """Return the files that a setting names: one path or several."""
    return [str(path) for path in value] if isinstance(value, list) else [str(value)] if value else []
