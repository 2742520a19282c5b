"""The current folder is data: no verb that runs nothing imports a module of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from snapshot_files import crashed_reward, write
from traps import set_traps

SOURCE = Path(__file__).parents[2] / "src" / "raydebug"
SCRIPT = "python3 -m verl.trainer.main_ppo data.train_batch_size=256\n"
VERBS = (
    "open c.snapshot.gz -x w",
    "open c.snapshot.gz c.html --html",
    "diagnose a.log",
    "diagnose .",
    "run --dry-run --profile debug -- bash run.sh",
    "up --write-env new.env",
    "vscode --print",
    "report --list",
    "paused",
    "ps",
    "stacks",
    "job list",
    "check env --fresh",
    "check --prefetch -- bash run.sh",
    "image --dry-run",
    "up --cluster compose --dry-run",
    "run -- no-such-program",
)


@pytest.mark.parametrize("verb", VERBS)
def test_a_folder_of_traps(verb: str, tmp_path: Path) -> None:
    """In a folder with a types.py, a ray.py and thirty others a verb imports none of them."""
    mark = set_traps(tmp_path)
    write(tmp_path, crashed_reward(), "c")
    (tmp_path / "a.log").write_text("ValueError: x\n")
    (tmp_path / "run.sh").write_text(SCRIPT)
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    program = [str(Path(sys.executable).with_name("raydebug")), *verb.split()]
    done = subprocess.run(program, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr
    assert not mark.exists(), mark.read_text()


def test_a_trap_leaves_its_mark(tmp_path: Path) -> None:
    """Without `-P` Python falls into one of the traps."""
    mark = set_traps(tmp_path)
    subprocess.run([sys.executable, "-c", "import json"], cwd=tmp_path, capture_output=True, timeout=60)
    assert mark.exists()


def test_each_python_of_ours_starts_with_p() -> None:
    """Wherever our code starts a Python with -m or -c, -P stands before it."""
    bare = re.compile(r"""(?:executable|python|PYTHON)"?,\s+"-[mc]",\s+(?!"verl)""")
    assert not [(file.name, found[0]) for file in SOURCE.rglob("*.py") for found in bare.finditer(file.read_text())]
