"""From what a host has to the limits of its containers: exact values for four hosts, and what holds for all."""

from __future__ import annotations

import pytest

from raydebug.cluster.compose.sizing import GIB, Host, as_env, look_at_host, settings_for
from raydebug.settings.dotenv import check_env_file

NAMES = (
    "HEAD_MEMORY", "WORKER_MEMORY", "OBJECT_STORE_BYTES", "SHM_SIZE", "HEAD_OBJECT_STORE_BYTES", "HEAD_SHM_SIZE",
    "TMP_SIZE", "PIDS_LIMIT", "HEAD_CPUS", "WORKER_CPUS",
)  # fmt: skip
LAPTOP = Host(8, 16 * GIB, pids=4194304)
H100 = Host(64, 512 * GIB, (80 * GIB,) * 8, pids=4194304)
H200 = Host(192, 2048 * GIB, (141 * GIB,) * 8, pids=4194304)
ONE_GPU = Host(16, 64 * GIB, (24 * GIB,), pids=4194304)


def values(host: Host, **options: int) -> dict[str, str]:
    return {one.name: one.value for one in settings_for(host, **options)}


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (LAPTOP, ("5g", "8g", str(2 * GIB), "4g", str(1 * GIB), "2g", "1g", "8192", "2", "16")),
        (H100, ("60g", "419g", str(125 * GIB), "141g", str(16 * GIB), "17g", "4g", "16384", "4", "64")),
        (H200, ("64g", "1951g", str(186 * GIB), "202g", str(16 * GIB), "17g", "4g", "32768", "4", "192")),
        (ONE_GPU, ("7g", "52g", str(15 * GIB), "17g", str(2 * GIB), "3g", "4g", "8192", "2", "16")),
    ],
    ids=["laptop", "8xH100", "8xH200", "1x24GB"],
)
def test_settings_of_four_hosts(host, expected):
    """A laptop, two hosts with eight GPUs and one with a single GPU get exactly these limits."""
    assert values(host) == dict(zip(NAMES, expected, strict=True))


def test_workers_share_the_host():
    """Two workers on one host get half of its memory each; logical GPUs raise the logical CPUs."""
    assert values(LAPTOP, workers=2)["WORKER_MEMORY"] == "4g"
    assert values(LAPTOP, logical_gpus=8)["WORKER_CPUS"] == "32"


@pytest.mark.parametrize("memory_gib", [1, 2, 4, 8, 24, 4096])
@pytest.mark.parametrize("cores", [1, 2, 512])
@pytest.mark.parametrize("gpus", [0, 1, 16])
def test_what_holds_for_every_host(memory_gib, cores, gpus):
    """Everywhere: from 4 GiB on, limits fit in the host, and the object store in its shared memory."""
    found = values(Host(cores, memory_gib * GIB, (80 * GIB,) * gpus, pids=32768))
    gib = {name: int(found[name].rstrip("g")) for name in NAMES if name.endswith(("MEMORY", "SIZE"))}
    assert all(size >= 1 for size in gib.values())
    if memory_gib >= 4:
        assert gib["HEAD_MEMORY"] + gib["WORKER_MEMORY"] < memory_gib
    assert int(found["OBJECT_STORE_BYTES"]) < gib["SHM_SIZE"] * GIB
    assert int(found["HEAD_OBJECT_STORE_BYTES"]) < gib["HEAD_SHM_SIZE"] * GIB
    assert int(found["PIDS_LIMIT"]) <= 16384
    assert int(found["WORKER_CPUS"]) >= max(cores, 3 * gpus + 8)


def test_as_a_env_file(tmp_path):
    """The settings are a .env with the arithmetic as comments, which the reader of .env takes as it is."""
    text = as_env(settings_for(H100))
    assert text.splitlines()[:4] == [
        "# of 480 GiB (512 less 32 for the host): an eighth, or what is enough",
        "HEAD_MEMORY=60g",
        "# 480 GiB less 60 (head) and 1 (gateway); what is offloaded from 640 GiB of GPU memory goes here",
        "WORKER_MEMORY=419g",
    ]
    (tmp_path / ".env").write_text(text)
    assert check_env_file(tmp_path / ".env") == values(H100)


def test_this_machine():
    """This machine has a core, memory and processes; without a driver no GPU."""
    host = look_at_host(with_gpus=False)
    assert (host.cores >= 1, host.memory_bytes > GIB, host.pids > 1000, host.gpus_bytes) == (True, True, True, ())
    assert look_at_host(with_gpus=False, engine=(3, 2 * GIB)).cores == 3
