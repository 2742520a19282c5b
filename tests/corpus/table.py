"""How the trainings of public repositories are read, beside what bash runs: a table, and each difference.

    python tests/corpus/table.py FOLDER [--json FILE]

FOLDER has a checkout of each repository in scripts.toml, as OWNER+NAME, at its commit; the scripts themselves are not
part of this repository. Each script runs in bash with stub programs (run_in_bash.py; root), and each training command
that bash starts has to be found with the same arguments, or with a note that says what could not be known.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
import tempfile
import tomllib
from pathlib import Path

from run_in_bash import commands_of

from raydebug.commands.trainings import find_trainings
from raydebug.errors import RaydebugError

# What is a training is said here by names that are nowhere in raydebug: a second opinion.
TRAINS = re.compile(
    r"(^|[./])(main_(ppo|dapo|prime|entropy|spin|sppo|azr|mix|flowrl|gkd|hint|dance|rep|dynamo|grpo)\w*|fully_async_main"
    r"|spo_main_ppo|gvpo_main_ppo|grpo_main|main_ppo_split|\w*sft_trainer\w*|main_generation(_server)?|train_ppo_ray"
    r"|multi_agent_train_ppo_ray|verl\.trainer\.main|train\.main)(\.py)?$"
)
ENVIRON = {"HOME": "/root", "PATH": "/usr/bin", "USER": "root"}


def main() -> None:
    """Print the table of all scripts, then what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    listed = tomllib.loads((Path(__file__).parent / "scripts.toml").read_text(encoding="utf-8"))["repositories"]
    outcomes: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for repository in listed:
            home = asked.folder / repository["name"].replace("/", "+")
            for script in repository["scripts"]:
                file, folder = home / script, home / repository.get("folder", "")
                outcomes[f"{repository['name']} {script}"] = _outcome(file, folder, Path(scratch))
    for outcome, count in collections.Counter(it.partition(":")[0] for it in outcomes.values()).most_common():
        sys.stdout.write(f"{count:5d}  {outcome}\n")
    for script, outcome in outcomes.items():
        if outcome.startswith("wrong"):
            sys.stdout.write(f"{script}: {outcome}\n")
    if asked.json:
        asked.json.write_text(json.dumps(outcomes, indent=1))


def _outcome(file: Path, folder: Path, scratch: Path) -> str:
    """Return how the trainings of one script were read."""
    ran = commands_of(file, folder, scratch, [])
    truth = [it for it in ran or [] if any(TRAINS.search(word) for word in it[:40]) or "--rollout-batch-size" in it]
    try:
        found = find_trainings(["bash", str(file)], ENVIRON, folder)
    except RaydebugError as failure:
        return f"refused: {failure.cause}"
    if not truth:
        if not found:
            return "declined: bash runs no training either"
        noted = all(training.notes for training in found)
        return "recognised, and noted that bash does not come so far" if noted else "recognised; bash stops before it"
    missed = []
    for argv in truth:
        same = [it for it in found if argv[-len(it.argv[1:]) :] == it.argv[1:]]
        if not same and not any(it.notes and it.program.module.split(".")[-1] in " ".join(argv) for it in found):
            missed.append(" ".join(argv)[:150])
    if missed:
        return f"wrong: {missed}"
    exact = all(any(argv[-len(it.argv[1:]) :] == it.argv[1:] for it in found) for argv in truth)
    return "recognised, exactly as bash" if exact else "recognised, with a note"


if __name__ == "__main__":
    main()
