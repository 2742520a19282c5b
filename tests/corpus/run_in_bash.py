"""Run a shell script with stub programs and return the commands that it starts: the truth for tests/corpus/table.py.

The script sees a read-only disk, no network, and programs that do nothing but write down their arguments. Needs root.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LIMIT_S = 20.0
STUBS = (
    *(
        "python",
        "python3",
        "torchrun",
        "accelerate",
        "deepspeed",
        "ray",
        "srun",
        "sbatch",
        "pip",
        "pip3",
        "uv",
        "conda",
    ),
    *("nvidia-smi", "docker", "curl", "wget", "git", "huggingface-cli", "hf", "sleep", "pkill", "kill", "killall"),
    *(
        "lsof",
        "apt",
        "apt-get",
        "sudo",
        "ssh",
        "scp",
        "tmux",
        "module",
        "mamba",
        "rm",
        "mv",
        "cp",
        "mkdir",
        "ip",
        "aws",
    ),
)


def commands_of(script: Path, folder: Path, scratch: Path, arguments: list[str]) -> list[list[str]] | None:
    """Return the argv of each program that a script starts, in their order; None if it does not end in time.

    Args:
        script: the script.
        folder: where it is started.
        scratch: a folder for the stubs and the log.
        arguments: of the script.
    """
    stubs = scratch / "stubs"
    stubs.mkdir(parents=True, exist_ok=True)
    log = scratch / "log"
    for name in STUBS:
        stub = stubs / name
        stub.write_text(
            f"#!{sys.executable} -I\nimport json,sys\n"
            f'open("/run/said","a").write(json.dumps(["{name}",*sys.argv[1:]])+chr(10))\n'
        )
        stub.chmod(0o755)
    log.write_text("")
    inside = (
        "set -e; mount --make-rprivate /; mount --bind / /; mount -o remount,bind,ro /;"
        f"mount -t tmpfs tmpfs /run; touch /run/said; mount --bind {log} /run/said; mount -o remount,bind,rw /run/said;"
        'cd "$1"; shift; exec env -i HOME=/root USER=root PATH="$STUBS":/usr/bin:/bin bash "$@"'
    )
    argv = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "bash", "-c", inside, "x"]
    null = subprocess.DEVNULL
    try:
        subprocess.run(
            [*argv, str(folder), str(script), *arguments], timeout=LIMIT_S, check=False,
            stdin=null, stdout=null, stderr=null, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "STUBS": str(stubs)},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    return [json.loads(line) for line in log.read_text().splitlines()]
