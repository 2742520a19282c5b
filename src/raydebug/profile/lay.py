"""Lay a profile over one whole command, as it stands where it runs: what `profile show` prints and the driver does.

`python -m raydebug.profile.lay REQUEST` answers in JSON for another place: a cluster's containers, another Python.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from raydebug.errors import Exit, RaydebugError
from raydebug.profile.installed import Installed, look
from raydebug.profile.load import load_profile
from raydebug.profile.overlay import Overlay, overlay_profile
from raydebug.profile.recognise import TRAINERS, Trainer, recognise
from raydebug.profile.swap import MODEL_RULES, Build, swap_in


@dataclass(frozen=True)
class Laid:
    """A command with a profile laid over it.

    Args:
        trainer: whose command it is.
        installed: the trainer as it was found.
        overlay: what changed, and why.
        argv: the new command.
        builds: what has to be made before it starts.
    """

    trainer: Trainer
    installed: Installed
    overlay: Overlay
    argv: list[str]
    builds: list[Build]

    def as_json(self) -> dict[str, Any]:
        """Return the document of `profile show --json`."""
        return {
            "version": 1,
            "trainer": self.trainer.module,
            "verl": self.installed.version,
            "keys_of": self.overlay.version,
            "changes": [asdict(change) for change in self.overlay.changes],
            "missing": [asdict(one) for one in self.overlay.missing],
            "made": [{"what": build.what, "target": str(build.target)} for build in self.builds],
            "notes": self.overlay.notes,
            "argv": self.argv,
        }


def lay(
    argv: Sequence[str],
    *,
    profile: str,
    environ: Mapping[str, str],
    folder: Path,
    search: Sequence[str],
    tiny: Sequence[str] = (),
    version: str | None = None,
) -> Laid:
    """Lay a profile over a command.

    Args:
        argv: the whole command, from its interpreter or torchrun on.
        profile: the profile's name.
        environ: the environment that it runs in.
        folder: where it runs.
        search: where its Python looks for modules, in order.
        tiny: what is swapped in: `model`, `data`.
        version: take the trainer for one of this version, whatever is installed.

    Raises:
        RaydebugError: it is no training command that we know, or the profile cannot be laid over it.
    """
    trainer = recognise(argv)
    if trainer is None:
        raise no_training(argv)
    rules = load_profile(profile)
    if "model" in tiny:
        rules = replace(rules, rules=rules.rules + MODEL_RULES)
    installed = look(trainer, argv, folder=folder, search=search)
    if version is not None and version != installed.version:
        installed = Installed(version, None, f"verl {version} was asked for")
    launcher_at = trainer.overrides_at if trainer.launcher_at is None else trainer.launcher_at
    program_at = max(launcher_at, trainer.overrides_at - 1)
    overlay = overlay_profile(
        rules,
        trainer,
        argv[trainer.overrides_at :],
        environ,
        installed=installed,
        launcher=argv[launcher_at:program_at],
    )
    builds = swap_in(tiny, overlay.settings, trainer, folder)
    new = [*argv[:launcher_at], *overlay.launcher, *argv[program_at : trainer.overrides_at], *overlay.argv]
    return Laid(trainer, installed, overlay, new, builds)


def no_training(argv: Sequence[str]) -> RaydebugError:
    """Return the error for a command that is no training."""
    return RaydebugError(
        f"'{' '.join(argv)[:120]}' is no training command that raydebug knows",
        cause="those are python or torchrun with -m verl.trainer.NAME (or a fork's); NAME is one of "
        f"{', '.join(TRAINERS)}",
        fix="raydebug profile show debug -- python -m verl.trainer.main_ppo ...",
        code="profile.no-training",
        exit_code=Exit.USAGE,
    )


def main(request: str) -> int:
    """Answer one request of `profile show` with JSON."""
    asked = json.loads(request)
    folder = Path.cwd()
    search = [*asked.pop("search"), *sys.path]
    try:
        answer = lay(**asked, folder=folder, search=search).as_json()
    except RaydebugError as failure:
        answer = {**failure.as_json(), "exit_code": failure.exit_code}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
