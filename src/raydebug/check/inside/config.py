"""The config that a command amounts to, composed by the trainer's own Hydra files: nothing of verl is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# A trainer of `profile.recognise` -> its package, the folder of its configs there, and the config that it starts from.
# Source: verl 0.9.1 trainer/main_ppo.py, @hydra.main(config_path="config", config_name="ppo_trainer").
HOMES = {"ppo": ("verl", "trainer/config", "ppo_trainer")}


class CannotCompose(Exception):
    """Hydra refuses the command; `kind` and `message` are its own words."""

    def __init__(self, kind: str, message: str, keys: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.keys = keys

    def as_facts(self) -> dict[str, Any]:
        """Return what a stage answers instead of facts about its subject."""
        return {"config_error": {"kind": self.kind, "message": self.message, "keys": self.keys}}


def compose(request: dict[str, Any]) -> dict[str, Any]:
    """Return the whole config of a command as plain values; what is missing stays as '???'."""
    return plain(compose_live(request))


def compose_live(request: dict[str, Any]) -> Any:
    """Return the whole config of a command as Hydra gives it.

    Args:
        request: `command`, the argv; `profile`, laid over it first where there is one.

    Raises:
        CannotCompose: Hydra refuses an override, a file or a value.
    """
    from importlib.util import find_spec

    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra._internal.utils import get_args_parser
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from raydebug.profile.recognise import recognise

    command = request["command"]
    trainer = recognise(command)
    if trainer is None or trainer.name not in HOMES:
        raise CannotCompose("NoTrainer", "the command is no training that can be checked")
    package, folder, config_name = HOMES[trainer.name]
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise CannotCompose("NoPackage", f"{package} is not installed")
    home = os.path.join(os.path.dirname(spec.origin), folder)  # noqa: PTH118, PTH120
    arguments = list(command[trainer.overrides_at :])
    if request.get("profile"):
        from raydebug.profile.lay import lay

        search = sys.path if sys.flags.safe_path else ["", *sys.path]
        laid = lay(command, profile=request["profile"], environ=os.environ, folder=Path.cwd(), search=search)
        arguments = list(laid.overlay.argv)
    try:
        said = get_args_parser().parse_args(arguments)
        if said.config_path:
            # Source: hydra 1.3 _internal/utils.py compute_search_path_dir: a relative one is beside the trainer's file.
            home = os.path.join(os.path.dirname(home), said.config_path)  # noqa: PTH118, PTH120
        overrides = list(said.overrides)
        if said.config_dir:
            overrides.append(f"hydra.searchpath=[{os.path.abspath(said.config_dir)}]")
        with initialize_config_dir(config_dir=home, version_base=None):
            return hydra_compose(said.config_name or config_name, overrides=overrides)
    except (HydraException, OmegaConfBaseException) as failure:
        first: BaseException = failure
        while first.__cause__ is not None:
            first = first.__cause__
        words = str(first) if str(first) in str(failure) else f"{failure}\n{first}"
        raise CannotCompose(type(first).__name__, words, _known_keys(home, config_name)) from failure
    except SystemExit as failure:  # its argument parser ends the program
        raise CannotCompose("Arguments", "Hydra does not know an option of the command") from failure


def _known_keys(home: str, config_name: str) -> tuple[str, ...]:
    """Return every key of the trainer's config, for a word that is like the one that was meant."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException

    def keys(node: Any, above: str) -> Iterator[str]:
        for name, value in node.items():
            yield f"{above}{name}"
            if isinstance(value, dict):
                yield from keys(value, f"{above}{name}.")

    try:
        with initialize_config_dir(config_dir=home, version_base=None):
            return tuple(keys(plain(hydra_compose(config_name)), ""))
    except HydraException:
        return ()


def plain(config: Any) -> dict[str, Any]:
    """Return the config as plain values; one that cannot be resolved becomes None, as nobody may read it."""
    from omegaconf import DictConfig, ListConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    def value_of(node: Any, key: Any) -> Any:
        if OmegaConf.is_missing(node, key):
            return "???"
        try:
            return value(node[key])
        except OmegaConfBaseException:
            return None

    def value(node: Any) -> Any:
        if isinstance(node, DictConfig):
            return {str(key): value_of(node, key) for key in node}
        if isinstance(node, ListConfig):
            return [value_of(node, index) for index in range(len(node))]
        return node

    whole = value(config)
    assert isinstance(whole, dict)
    return whole


def variables() -> dict[str, str]:
    """Return the variables that rules about a config ask for; of a secret only that it is there."""
    names = ("VERL_PLATFORM", "VLLM_CPU_KVCACHE_SPACE", "WANDB_MODE")
    found = {name: os.environ[name] for name in names if name in os.environ}
    return {**found, **({"WANDB_API_KEY": "(set)"} if os.environ.get("WANDB_API_KEY") else {})}


def read_by(request: dict[str, Any], *more: Any) -> list[str]:
    """Return the files and folders that an answer depends on, with those of the packages and of the command's configs.

    Args:
        request: whose `command` may name folders of configs.
        more: paths of the question's own; None is left out.
    """
    packages = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    said = [
        value for option, value in _options(request["command"]) if option in ("--config-path", "--config-dir", "-cp")
    ]
    modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    here = os.getcwd() + os.sep  # noqa: PTH109 - a prefix of text
    own = [file for file in modules if isinstance(file, str) and file.startswith(here)]
    every = [*packages, *said, *own, *(str(path) for path in more if path is not None)]
    return sorted({os.path.abspath(os.path.expanduser(path)) for path in every})  # noqa: PTH111


def _options(command: list[str]) -> Iterator[tuple[str, str]]:
    for word, after in zip(command, [*command[1:], ""], strict=True):
        option, sign, value = word.partition("=")
        yield option, value if sign else after


def gather(request: dict[str, Any]) -> dict[str, Any]:
    """Return the config, or Hydra's words."""
    try:
        return {"config": compose(request)}
    except CannotCompose as refusal:
        return refusal.as_facts()
