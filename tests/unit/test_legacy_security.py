"""Ray's legacy debugger, which knows no token, gets no way beyond loopback from us."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from raydebug.cluster.environment import cluster_environment, ray_command
from raydebug.cluster.state import Cluster

ROOT = Path(__file__).resolve().parents[2]
# Whatever makes or runs a command: the program, what containers run, and all that is handed to Docker.
COMMANDS = ("src", "entrypoints", "env", ".devcontainer", "ci", ".ci", "deploy")


def a_cluster(tmp_path: Path) -> Cluster:
    names = "gcs dashboard agent agent_grpc runtime_env metrics client_server node_manager object_manager gateway dial"
    ports = dict.fromkeys(names.split(), 1)
    return Cluster("x", "0", "local", tmp_path, tmp_path, sys.executable, ports, 1, 0, "legacy", "core", 0.0)


def test_s8_no_command_opens_it(tmp_path):
    """S8: `--ray-debugger-external` is in no command that is made here, and in no file that makes one."""
    assert not [word for word in ray_command(a_cluster(tmp_path)) if "debugger" in word]
    files = [path for folder in COMMANDS for path in (ROOT / folder).rglob("*") if path.is_file()]
    files += [*ROOT.glob("docker-compose*.yml"), ROOT / "Dockerfile", ROOT / "noxfile.py"]
    assert len(files) > 150
    assert [str(path) for path in files if re.search(rb"ray.debugger.external", path.read_bytes())] == []


def test_s8_no_variable_opens_it(tmp_path):
    """S8: a REMOTE_PDB_HOST of the user's shell does not reach the cluster's processes."""
    made = cluster_environment({"REMOTE_PDB_HOST": "0.0.0.0", "HOME": "/h"}, a_cluster(tmp_path), {})
    assert (made.get("REMOTE_PDB_HOST"), made["HOME"], made["RAY_DEBUG"]) == (None, "/h", "legacy")
