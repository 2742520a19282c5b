"""A fork of verl for tests: a package with verl's files where verl has them, and a config made of the keys we know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from raydebug.trainers.registry import columns

# What the trainer of the fork does: say which arguments it was started with.
MAIN = """
import sys
# @hydra.main(config_path="config", config_name="{config}", version_base=None)
print("TRAINING", *sys.argv[1:], sep="\\n  ")
"""


def make_fork(
    place: Path,
    *,
    package: str = "verl",
    trainer: str = "ppo",
    module: str = "main_ppo",
    like: str = "0.9.0",
    version: str | None = None,
    without: tuple[str, ...] = (),
    more: dict[str, Any] | None = None,
) -> Path:
    """Make a package whose trainer has the keys of a release, less some and some of its own; return its folder.

    Args:
        place: the folder that it lies in.
        package: its name.
        trainer: whose keys.
        module: its program.
        like: which release's keys.
        version: what its version file says; None for no such file.
        without: keys that it does not have.
        more: keys of its own.
    """
    values = {key.path: key.default for key in columns()[trainer][like].values() if not (key.added or key.listed_only)}
    values |= {path: None for key in columns()[trainer][like].values() for path in (*key.instead_of, *key.also)}
    if trainer == "ppo":
        values |= {"algorithm.adv_estimator": "gae", "actor_rollout_ref.rollout.name": "vllm"}
    config: dict[str, Any] = {}
    for path, value in {**values, **(more or {})}.items():
        if path in without or path.startswith("--"):
            continue
        *above, last = path.split(".")
        part = config
        for name in above:
            part = part.setdefault(name, {})
        part[last] = list(value) if isinstance(value, tuple) else value
    folder = place / package
    (folder / "trainer" / "config").mkdir(parents=True)
    (folder / "trainer" / "config" / "own.yaml").write_text(yaml.safe_dump(config))
    (folder / "trainer" / f"{module}.py").write_text(MAIN.format(config="own"))
    for inner in (folder, folder / "trainer"):
        (inner / "__init__.py").touch()
    if version is not None:
        (folder / "version").mkdir()
        (folder / "version" / "version").write_text(version)
    return folder
