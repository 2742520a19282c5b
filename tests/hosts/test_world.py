"""The world that the other tests of this folder live in is what they take it for."""

from __future__ import annotations

import sys
from pathlib import Path

from runs import wait_for
from world import ADDRESSES, NODES, REPOSITORY, World


def test_machines_are_apart(world: World):
    """Each machine has its own name, address, processes, /tmp and /dev/shm; the homes are common."""
    for node in NODES:
        assert world.on(node, ["hostname"]).stdout == f"{node}\n"
        assert ADDRESSES[node] in world.on(node, ["ip", "-br", "address", "show", "eth0"]).stdout
        for folder in ("/tmp", "/dev/shm"):
            assert not set(NODES) & set(world.on(node, ["ls", folder]).stdout.split())
            world.on(node, ["touch", f"{folder}/{node}"])
        world.on(node, ["sh", "-c", "touch ~/$(hostname)"])
        programs = sorted(one.cmdline()[0].split()[0].strip(":") for one in world.processes(node))
        assert programs == ["munged", "slurmd", "sshd"]
    assert set(NODES) <= set(world.login(["ls", str(world.home())]).stdout.split())


def test_ways_to_a_node(world: World):
    """Slurm and ssh lead from the login node to each node, for root and for another user."""
    for user in ("root", "bob"):
        assert world.login(["ssh", "n2", "hostname"], user=user).stdout == "n2\n"
        assert sorted(world.login(["srun", "-N3", "hostname"], user=user).stdout.split()) == list(NODES)
        assert (
            world.login(["ssh", "n2", "command -v python"], user=user).stdout
            == f"{Path(sys.executable).parent}/python\n"
        )


def test_cable_and_power(world: World):
    """A node's network and power can be taken from it and given back."""
    knock = ["python", "-c", "import socket; socket.create_connection(('n3', 22), 1)"]
    world.login(knock)
    world.cut("n3")
    assert world.login(knock, check=False).returncode != 0
    world.mend("n3")
    wait_for(lambda: world.login(knock, check=False).returncode == 0, "n3's network")
    left = world.start("n3", ["sleep", "3600"])
    wait_for(lambda: bool(world.programs("n3")), "a program on n3")
    world.clean()
    shown = {path.relative_to("/tmp").parts[0] for path in (world.folder, REPOSITORY) if path.is_relative_to("/tmp")}
    assert (world.programs("n3"), left.wait() != 0) == ([], True)
    assert set(world.on("n3", ["ls", "/tmp"]).stdout.split()) == shown
    world.kill("n3")
    assert world.login(knock, check=False).returncode != 0
    world.boot("n3")
    world.login(knock)
    wait_for(lambda: world.login(["srun", "-w", "n3", "hostname"], check=False).stdout == "n3\n", "n3 in Slurm")
