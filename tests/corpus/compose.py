"""Whether Hydra composes what the profile `debug` makes of public trainings, and whether their batch sizes divide.

    python tests/corpus/compose.py FOLDER

FOLDER is that of table.py; all scripts below it are read. It needs hydra-core beside raydebug. Prints how many commands
compose before and after the profile, and each one that composed before and fails after, or whose numbers contradict
each other by the rules of verl's workers, which are written down here a second time.
"""

from __future__ import annotations

import collections
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from raydebug.commands.trainings import Training, find_trainings
from raydebug.errors import RaydebugError
from raydebug.profile.apply_profile import apply_profile
from raydebug.trainers.config import find_program_file, value_at
from raydebug.trainers.verl.config_files import Overrides, main_config
from raydebug.trainers.verl.hydra_config import plain

ENVIRON = {"HOME": "/root", "PATH": "/usr/bin"}
ACTOR = "actor_rollout_ref.actor"


def main() -> None:
    """Print the counts, then each failure."""
    root = Path(sys.argv[1]).absolute()
    counts: collections.Counter[str] = collections.Counter()
    seen, wrong = set(), []
    for script in sorted(root.glob("**/*.sh")):
        for training in _trainings(script, root):
            key = (tuple(training.argv), training.folder)
            if key in seen:
                continue
            seen.add(key)
            outcome, complaints = _judge(training)
            counts[outcome] += 1
            wrong += [f"{script.relative_to(root)}: {complaint}" for complaint in complaints]
    for outcome, count in counts.most_common():
        sys.stdout.write(f"{count:5d}  {outcome}\n")
    sys.stdout.write("".join(f"{line}\n" for line in [f"{len(wrong)} contradictions", *wrong]))


def _trainings(script: Path, root: Path) -> list[Training]:
    """Return verl's trainings of a script, as it runs where the trainer's package is."""
    home = root / script.relative_to(root).parts[0]
    inner = [folder for folder in script.parents if folder.is_relative_to(home)]
    folder = next((it for it in inner if (it / "verl").is_dir() or (it / "recipe").is_dir()), home)
    try:
        found = find_trainings(["bash", str(script)], ENVIRON, folder)
    except RaydebugError:
        return []
    return [it for it in found if it.program.trainer.name == "verl" and it.program.name != "easyr1"]


def _judge(training: Training) -> tuple[str, list[str]]:
    """Return what became of a training, and what is wrong with it."""
    search = ["", *filter(None, training.environ.get("PYTHONPATH", "").split(os.pathsep))]
    program = training.program
    source = find_program_file(program.module, training.argv[program.arguments_at - 1], training.folder, search)
    if source is None:
        return "its source is not here", []
    try:
        applied = apply_profile(
            training.argv, profile="debug", environ=training.environ, folder=training.folder, search=search
        )
    except RaydebugError as failure:
        return f"refused: {failure.code}", []
    before = _composed(source, training.argv[program.arguments_at :], training.folder)
    after = _composed(source, applied.argv[applied.program.arguments_at :], training.folder)
    if isinstance(before, str):
        return "composes neither before nor after" if isinstance(after, str) else "composes after it only", []
    if isinstance(after, str):
        return "composes before it only", [after]
    return "composes before and after", list(_contradictions(after)) if program.name == "ppo" else []


def _composed(source: Path, arguments: list[str], folder: Path) -> dict[str, Any] | str:
    """Return a config as Hydra composes it, or Hydra's complaint."""
    found = main_config(source, Overrides(list(arguments)))
    name, place = found.name, found.folder
    overrides = [
        word for before, word in zip(["", *arguments], arguments, strict=False)
        if not word.startswith("-") and not (before.startswith("-") and "=" not in before)
    ]  # fmt: skip
    os.chdir(folder)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(place), version_base=None):
            return dict(plain(compose(name.removesuffix(".yaml"), overrides=overrides)))
    except Exception as failure:  # noqa: BLE001 - Hydra's and OmegaConf's own
        return str(failure).strip().partition("\n")[0][:200]


def _contradictions(config: dict[str, Any]) -> Iterator[str]:
    """Yield the numbers that verl's workers would refuse.

    Source: verl 0.4 to 0.9 utils/config.py and workers/; Search-R1 598e61bd verl/workers/fsdp_workers.py (older keys).
    """

    def whole(path: str) -> int | None:
        found = value_at(config, path)
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    per_node, nodes, train = whole("trainer.n_gpus_per_node"), whole("trainer.nnodes"), whole("data.train_batch_size")
    if not per_node or not nodes or train is None:
        return
    ranks, rollouts = per_node * nodes, whole("actor_rollout_ref.rollout.n") or 1
    mini = whole(f"{ACTOR}.ppo_mini_batch_size")
    if train * rollouts % ranks:
        yield f"{train} x {rollouts} over {ranks} ranks"
    if train and mini and mini > train:
        yield f"mini {mini} above train {train}"
    if value_at(config, f"{ACTOR}.use_dynamic_bsz") or not mini:
        return
    older, newer = whole(f"{ACTOR}.ppo_micro_batch_size"), whole(f"{ACTOR}.ppo_micro_batch_size_per_gpu")
    if newer:
        share = mini * rollouts // ranks
        if share < 1 or share % newer:
            yield f"a rank's share {share} by micro {newer}"
    elif older and (mini < ranks or older < ranks or (mini // ranks) % (older // ranks)):
        yield f"mini {mini} by micro {older}, of {ranks} ranks together"


if __name__ == "__main__":
    main()
