"""A small cluster on one machine, for tests: a login node and three nodes with Slurm, munge and sshd.

Each machine is a set of Linux namespaces: its own address, host name, processes, /tmp, /root, /run and /dev/shm. The
homes and the world's folder are common, as on a cluster with a shared file system, and so is the Python of the tests.
Slurm, munge and OpenSSH come from the packages of this machine's apt, and are unpacked into the world's folder: nothing
is installed. All of it ends with the test's process, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from runs import wait_for
from two_hosts import NoNamespaces, kept

LOGIN, NODES = "login", ("n1", "n2", "n3")
ADDRESSES = {LOGIN: "10.77.0.1", "n1": "10.77.0.11", "n2": "10.77.0.12", "n3": "10.77.0.13"}
USERS = {"root": 0, "bob": 2002}
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "openssh-server")
PROGRAMS = ("apt-get", "dpkg-deb", "ip", "mount", "nsenter", "unshare")
REPOSITORY = Path(__file__).resolve().parents[2]
DAEMONS = ("munged", "sshd", "slurmctld", "slurmscriptd", "slurmd")
LIMIT_S = 60.0  # of a command
# Of the twenty minutes that all tests of tests/hosts take, CI has eight.
long = pytest.mark.skipif("RAYDEBUG_TEST_LONG" not in os.environ, reason="minutes more: RAYDEBUG_TEST_LONG=1")
PACKAGES_S = 300.0
# A machine's first process: it collects what its parents left, and ends with its stdin.
INIT = ("env", "--ignore-signal=CHLD")
UNSHARE = ("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc")

SLURM = """\
ClusterName=world
SlurmctldHost=login
SlurmUser=root
SlurmdUser=root
StateSaveLocation=/run/slurmctld
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={log}/slurmctld
SlurmdLogFile={log}/slurmd-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=30
SlurmdParameters=config_overrides
KillWait=5
NodeName=n[1-3] CPUs=8 RealMemory=4000
PartitionName=main Nodes=n[1-3] Default=YES
"""
SSHD = """\
HostKey /etc/ssh/host_key
AuthorizedKeysFile .ssh/id_ed25519.pub
PasswordAuthentication no
UsePAM no
StrictModes no
PermitRootLogin yes
PidFile none
SetEnv {environ}
"""
SSH = "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"


class NoWorld(Exception):
    """This machine cannot have such a world; the text says why."""


@dataclass
class World:
    """The machines.

    Args:
        folder: it has the same path on all machines and here.
        inits: the first process of each machine, as this machine sees it.
        keepers: what ends each.
    """

    folder: Path
    inits: dict[str, int] = field(default_factory=dict)
    keepers: dict[str, contextlib.ExitStack] = field(default_factory=dict)

    def home(self, user: str = "root") -> Path:
        """Return a user's home, the same on all machines."""
        return self.folder / "home" / user

    def environ(self, user: str = "root") -> dict[str, str]:
        """Return a user's environment after login: the Python of the tests comes first."""
        path = f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        return {**kept, "PATH": path, "HOME": str(self.home(user)), "USER": user, "LANG": "C.UTF-8"}

    def argv(self, machine: str, argv: Sequence[str], *, user: str = "root", cwd: Path | None = None) -> list[str]:
        """Return the argv that runs a program on a machine, in the user's home or in another folder."""
        enter = ["nsenter", "--target", str(self.inits[machine]), "--mount", "--net", "--uts", "--ipc", "--pid"]
        who = [f"--setuid={USERS[user]}", f"--setgid={USERS[user]}"] if user != "root" else []
        return [*enter, *who, "--", "env", f"--chdir={cwd or self.home(user)}", *argv]

    def start(
        self, machine: str, argv: Sequence[str], *, user: str = "root", cwd: Path | None = None,
        env: dict[str, str] | None = None, **options: Any,
    ) -> subprocess.Popen[str]:  # fmt: skip
        """Start a program on a machine; it ends with the machine, not with what this returns."""
        environ = {**self.environ(user), **(env or {})}
        return subprocess.Popen(
            self.argv(machine, argv, user=user, cwd=cwd), text=True, env=environ,
            **{"stdin": subprocess.DEVNULL, **options},
        )  # fmt: skip

    def on(
        self, machine: str, argv: Sequence[str], *, timeout_s: float = LIMIT_S, check: bool = True, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on a machine to its end; a failure has what it printed."""
        with self.start(machine, argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as started:
            try:
                out, err = started.communicate(timeout=timeout_s)
            except BaseException:
                for one in psutil.Process(started.pid).children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        one.kill()
                raise
        done = subprocess.CompletedProcess(list(argv), started.returncode, out, err)
        assert not check or done.returncode == 0, f"{machine}: {done.args}: {done.returncode}\n{out}{err}"
        return done

    def login(self, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a program on the login node to its end."""
        return self.on(LOGIN, argv, **options)

    def files(self, machine: str, path: str) -> Path:
        """Return a path of a machine as this process reaches it."""
        return Path(f"/proc/{self.inits[machine]}/root{path}")

    def programs(self, machine: str) -> list[psutil.Process]:
        """Return the processes of a machine but its daemons: sessions of sshd and steps of Slurm are among them."""
        found = []
        for one in self.processes(machine):
            with contextlib.suppress(psutil.Error):
                is_session = one.name() == "sshd" and one.ppid() != self.inits[machine]
                if one.name() not in DAEMONS or is_session:
                    found.append(one)
        return found

    def send_to(self, machine: str, matches: Callable[[list[str]], bool], how: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the programs of a machine whose argv matches; they may end meanwhile."""
        for one in self.programs(machine):
            with contextlib.suppress(psutil.Error):
                if (argv := one.cmdline()) and matches(argv):
                    one.send_signal(how)

    def clean(self) -> None:
        """End every program and empty what is of one machine alone, with Slurm's jobs first."""
        for user in USERS:
            self.login(["scancel", f"--user={user}"])

        def left() -> list[str]:  # Slurm waits for what a job has left
            found = [self.login(["squeue", "-h"]).stdout.strip()]
            for machine in self.inits:
                for one in self.programs(machine):
                    with contextlib.suppress(psutil.Error):
                        found.append(f"{machine}: {' '.join(one.cmdline())}")
                        one.kill()
            return [one for one in found if one]

        try:
            wait_for(lambda: not left(), "the end of all programs")
        except AssertionError as error:
            raise AssertionError(f"what is left: {left()}") from error
        for machine in self.inits:
            for folder in ("/tmp", "/dev/shm"):
                kept = [self.folder, REPOSITORY, Path(sys.prefix), Path(sys.base_prefix)]
                for one in self.files(machine, folder).iterdir():
                    if not any(path.is_relative_to(f"{folder}/{one.name}") for path in kept):
                        shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink()

    def processes(self, machine: str) -> list[psutil.Process]:
        """Return the processes of a machine but its first one."""
        found = []
        there = Path(f"/proc/{self.inits[machine]}/ns/pid").readlink()
        for one in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if Path(f"/proc/{one.pid}/ns/pid").readlink() == there and one.pid != self.inits[machine]:
                    found.append(one)
        return found

    def cut(self, machine: str) -> None:
        """Pull a node's cable."""
        self._link(machine, "down")

    def mend(self, machine: str) -> None:
        """Plug it in again."""
        self._link(machine, "up")

    def _link(self, machine: str, state: str) -> None:
        self.login(["ip", "link", "set", f"to-{machine}", state])

    def kill(self, machine: str) -> None:
        """Turn a node's power off."""
        self.keepers.pop(machine).close()

    def boot(self, machine: str) -> None:
        """Turn it on, with all of its programs; the login node comes first."""
        keeper = self.keepers[machine] = contextlib.ExitStack()
        enter = ["nsenter", "--target", str(self.inits[LOGIN]), "--mount"] if machine != LOGIN else []
        init = keeper.enter_context(kept([*enter, *UNSHARE, "--net", *INIT]))
        wait_for(lambda: bool(psutil.Process(init.pid).children()), "the first process")
        self.inits[machine] = psutil.Process(init.pid).children()[0].pid
        keeper.callback(self.inits.pop, machine, None)
        if machine == LOGIN:
            self._script(machine, *(self._layer(folder) for folder in ("usr", "etc")))
        self._script(machine, f"hostname {machine}", "ip link set lo up", *self._folders_of_its_own())
        device = "eth0"
        if machine == LOGIN:
            device = "br0"
            self._script(LOGIN, "ip link add br0 type bridge")
        else:  # a process is named as this machine sees it, so only the network is the login node's
            end = ["ip", "link", "add", f"to-{machine}", "type", "veth", "peer", "name", "eth0"]
            network = ["nsenter", "--target", str(self.inits[LOGIN]), "--net", "--"]
            subprocess.run([*network, *end, "netns", str(self.inits[machine])], check=True, timeout=LIMIT_S)
            self._script(LOGIN, f"ip link set to-{machine} master br0 up")
        log = self.folder / "log"
        munged = f"munged --force --log-file={log}/munged-{machine} --seed-file=/run/munge/seed"
        daemons = ["slurmctld"] if machine == LOGIN else [f"/usr/sbin/sshd -E {log}/sshd-{machine}", "slurmd"]
        up = f"ip address add {ADDRESSES[machine]}/24 dev {device}"
        self._script(machine, up, f"ip link set {device} up", "mkdir /run/munge /run/sshd", munged, *daemons)

    def _layer(self, folder: str) -> str:
        """Return the command that puts the packages, and files of ours, over a folder of the system."""
        layers = ":".join(
            str(one / folder) for one in (self.folder, self.folder / "packages") if (one / folder).is_dir()
        )
        return f"mount -t overlay -o ro,lowerdir={layers}:/{folder} overlay /{folder}"

    def _folders_of_its_own(self) -> Iterator[str]:
        """Give the commands that empty folders, but for what is common."""
        common = {self.folder, REPOSITORY, Path(sys.prefix), Path(sys.base_prefix)}
        for emptied, mode in (("/tmp", "1777"), ("/root", "0755")):
            yield f"mount --rbind {emptied} /mnt"
            yield f"mount -t tmpfs -o mode={mode} tmpfs {emptied}"
            for one in sorted(common):
                if one.is_relative_to(emptied):
                    yield f"mkdir -p {one}"
                    yield f"mount --bind /mnt/{one.relative_to(emptied)} {one}"
            yield "umount --lazy /mnt"
        yield "mount -t tmpfs tmpfs /run"
        yield "mount -t tmpfs -o size=1g tmpfs /dev/shm"

    def _script(self, machine: str, *commands: str) -> None:
        with (self.folder / "log" / f"boot-{machine}").open("a") as log:
            argv = self.argv(machine, ["sh", "-euxc", "\n".join(commands)], cwd=Path("/"))
            environ = self.environ()
            done = subprocess.run(argv, stdout=log, stderr=log, check=False, timeout=LIMIT_S, env=environ)
        if done.returncode != 0:
            raise NoWorld(f"{machine}: {Path(log.name).read_text().strip().splitlines()[-1]}")


@contextlib.contextmanager
def world() -> Iterator[World]:
    """Start a world; nothing of it is left after the block.

    Raises:
        NoWorld: it cannot be had here.
    """
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if os.getuid() != 0 or missing:
        raise NoWorld(f"it takes root, and {', '.join(missing or PROGRAMS)}")
    folder = Path(tempfile.mkdtemp(prefix="rdw-", dir="/tmp"))
    folder.chmod(0o755)
    found = World(folder)
    try:
        _unpack(folder)
        _write_files(found)
        for machine in (LOGIN, *NODES):
            found.boot(machine)
        wait_for(lambda: _idle(found) == len(NODES), "the nodes of Slurm")
        yield found
    except NoNamespaces as error:
        raise NoWorld(str(error)) from error
    finally:
        for machine in reversed(list(found.keepers)):
            found.kill(machine)
        shutil.rmtree(folder, ignore_errors=True)


def _idle(world: World) -> int:
    return world.login(["sinfo", "-h", "-N", "-o", "%T"], check=False).stdout.split().count("idle")


def _unpack(folder: Path) -> None:
    """Have apt fetch what this machine lacks of the packages, and unpack it."""
    archives = folder / "archives"
    (archives / "partial").mkdir(parents=True)
    options = [
        "-qq", "-o", f"Dir::Cache::archives={archives}", "-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=root",
    ]  # fmt: skip
    get = ["apt-get", *options, "-y", "--download-only", "--no-install-recommends", "install", *PACKAGES]
    for argv in (get, ["apt-get", *options, "update"], get):
        said = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PACKAGES_S)
        if argv is get and said.returncode == 0:
            break
    else:
        raise NoWorld(f"apt has not all of {', '.join(PACKAGES)}: {said.stderr.strip().splitlines()[-1:]}")
    for one in archives.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", one, folder / "packages"], check=True, timeout=LIMIT_S)
    shutil.rmtree(archives)
    for program in folder.glob("packages/usr/sbin/*-wlm"):  # Debian's alternatives, which an installation makes
        program.with_name(program.name.removesuffix("-wlm")).symlink_to(program.name)


def _write_files(world: World) -> None:
    """Write the configuration of all machines, and the homes."""
    etc, log = world.folder / "etc", world.folder / "log"
    for made in (log, etc / "munge", etc / "slurm", etc / "ssh"):
        made.mkdir(parents=True)
    (etc / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{ip} {name}\n" for name, ip in ADDRESSES.items()))
    others = [
        line for line in Path("/etc/passwd").read_text().splitlines() if line.split(":")[0] not in ("sshd", *USERS)
    ]
    users = [f"{name}:x:{uid}:{uid}::{world.home(name)}:/bin/sh" for name, uid in USERS.items()]
    (etc / "passwd").write_text("\n".join([*users, "sshd:x:2100:65534::/run/sshd:/usr/sbin/nologin", *others, ""]))
    (etc / "slurm" / "slurm.conf").write_text(SLURM.format(log=log))
    environ = " ".join(f"{name}={value}" for name, value in world.environ().items() if name in ("PATH", "PYTHONPATH"))
    (etc / "ssh" / "sshd_config").write_text(SSHD.format(environ=environ))
    (etc / "ssh" / "ssh_config").write_text(SSH)
    (etc / "munge" / "munge.key").write_bytes(os.urandom(128))
    (etc / "munge" / "munge.key").chmod(0o400)
    (etc / "munge").chmod(0o700)
    keygen = next(
        one for one in (world.folder / "packages/usr/bin/ssh-keygen", Path("/usr/bin/ssh-keygen")) if one.exists()
    )
    keys = [etc / "ssh" / "host_key"]
    for user, uid in USERS.items():
        (world.home(user) / ".ssh").mkdir(parents=True, mode=0o700)
        keys.append(world.home(user) / ".ssh" / "id_ed25519")
        os.chown(world.home(user), uid, uid)
    for key in keys:
        subprocess.run([keygen, "-qN", "", "-t", "ed25519", "-f", key], check=True, timeout=LIMIT_S)
    for one in (world.home("bob") / ".ssh", *(world.home("bob") / ".ssh").iterdir()):
        os.chown(one, USERS["bob"], USERS["bob"])
