"""A program's config by Hydra itself, and verl's own verdict on it. Runs in the cluster's Python, for `raydebug check`.

Nothing of verl is imported to compose: Hydra reads the files of the program. `plain_config` does so without Hydra.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from raydebug.findings import describe_exception
from raydebug.trainers.config import CannotCompose
from raydebug.trainers.verl import config_files
from raydebug.trainers.verl.config_files import MainConfig, NotComposed, leaves
from raydebug.trainers.verl.plain_config import resolved

_CORE, _CLASS_OF_DATA = "verl.trainer.ppo.core_algos", "data.custom_cls"
# What verl is asked beside its own check: a key, and the function that refuses a value of it.
_ASKED = (
    ("actor_rollout_ref.rollout", "verl.utils.config", "omega_conf_to_dataclass"),
    ("actor_rollout_ref.model.external_lib", "verl.utils.import_utils", "import_external_libs"),
    ("algorithm.adv_estimator", _CORE, "get_adv_estimator_fn"),
    ("actor_rollout_ref.actor.policy_loss.loss_mode", _CORE, "get_policy_loss_fn"),
    (_CLASS_OF_DATA, "verl.utils.dataset.rl_dataset", "get_dataset_class"),
)


def compose(main: MainConfig, arguments: Sequence[str]) -> Any:
    """Return the config of a program with these arguments, as Hydra has it.

    Raises:
        CannotCompose: Hydra refuses an override, a file or a value.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra._internal.utils import get_args_parser
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    home = str(main.folder)
    try:
        overrides = list(get_args_parser().parse_args(list(arguments)).overrides)
        if main.more:
            overrides.append(f"hydra.searchpath=[{os.path.abspath(main.more)}]")
        with initialize_config_dir(config_dir=home, version_base=None):
            return hydra_compose(main.name, overrides=overrides)
    except (HydraException, OmegaConfBaseException) as failure:
        first: BaseException = failure
        while first.__cause__ is not None:
            first = first.__cause__
        words = str(first) if str(first) in str(failure) else f"{failure}\n{first}"
        keys: tuple[str, ...] = ()  # of the program's config, for a proposal in the finding
        with contextlib.suppress(NotComposed, OSError):
            keys = tuple(dict(leaves(config_files.compose(main.name, main.folders(Path.cwd()), {}))))
        raise CannotCompose(type(first).__name__, words, keys) from failure
    except SystemExit as failure:  # Hydra's argument parser ends the program
        raise CannotCompose("Arguments", "Hydra does not know an option of the command") from failure


def plain(config: Any) -> dict[str, Any]:
    """Return the config as plain values, as `plain_config` resolves them."""
    from omegaconf import OmegaConf

    values: Any = OmegaConf.to_container(config)
    return resolved(values)


def ask_verl(config: Any) -> dict[str, str] | None:
    """Return verl's first refusal of a config; None if it accepts the config.

    Source: verl 0.9.1 trainer/main_ppo.py main (validate_config), workers/rollout/replica.py (RolloutConfig),
    workers/config/model.py:149 (external_lib), trainer/ppo/core_algos.py (its registries), utils/dataset/rl_dataset.py.
    """
    try:
        from verl.trainer.ppo.utils import need_critic, need_reference_policy
        from verl.utils.config import validate_config
    except ImportError as failure:
        if _is_older(failure):
            return None
        return {**describe_exception(failure), "part": "import verl"}
    try:
        validate_config(
            config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
        )
    except Exception as failure:  # noqa: BLE001 - assertions, ValueError, Hydra's own errors
        return {**describe_exception(failure), "part": "validate_config"}
    from omegaconf import OmegaConf

    sys.path.insert(0, "")  # the user's own modules may register what is asked for after them
    for part, module, function in _ASKED:
        value = config.data if part == _CLASS_OF_DATA else OmegaConf.select(config, part)
        if value is None:  # an older verl has no such key
            continue
        try:
            getattr(import_module(module), function)(value)
        except AttributeError:
            continue  # an older verl has no such function
        except Exception as failure:  # noqa: BLE001 - as above
            if not _is_older(failure):
                return {**describe_exception(failure), "part": part}
    return None


def _is_older(failure: Exception) -> bool:
    """Return whether an older verl, or a fork, has no such function."""
    return isinstance(failure, ImportError) and (failure.name or "").partition(".")[0] == "verl"
