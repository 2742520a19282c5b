"""verl's own config by raydebug's reader and by Hydra: the same values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raydebug.trainers.config import package_folder
from raydebug.trainers.registry import recognise
from raydebug.trainers.verl import checks
from raydebug.trainers.verl.checks import PpoChecks
from raydebug.trainers.verl.config_files import leaves
from raydebug.trainers.verl.trainer import VERL

MEGATRON = ("--config-name=ppo_megatron_trainer",)
COMMANDS = (
    (),
    ("data.train_files=['a b','c']", "actor_rollout_ref.actor.optim.lr=1e-6", "+own.new={a: 1}", "trainer.nnodes=$N"),
    ("actor_rollout_ref.actor.ppo_mini_batch_size=64", "critic.model.path=${actor_rollout_ref.model.path}"),
    ("actor@actor_rollout_ref.actor=torchtitan_actor",),
    (*MEGATRON, "+actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method=uniform"),
)


@pytest.mark.parametrize("said", COMMANDS)
def test_the_same_values_as_hydra_s(said: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defaults, groups, overrides and references give what Hydra and OmegaConf make of them."""
    from omegaconf import OmegaConf

    verl = package_folder("verl")
    assert verl is not None
    argv = ["python", "-m", "verl.trainer.main_ppo", *said]
    program = recognise(argv)
    assert program is not None

    def compose() -> Any:
        return PpoChecks(VERL).compose(program, argv, folder=tmp_path, search=[str(verl.parent)])

    by_hydra = compose()
    monkeypatch.setattr(checks, "first_missing", lambda *_: "hydra")
    ours = compose()
    assert (by_hydra.live is None, ours.live) == (False, None)
    assert ours.values == by_hydra.values
    for key, value in leaves(ours.values):
        assert value in ("???", OmegaConf.select(by_hydra.live, key)), key
