"""The image of flavour cuda on a machine without a GPU: modules, compiler, what it says of the missing driver."""

from __future__ import annotations

import subprocess

import pytest

from build_twice import require_image

IMAGE = "raydebug:cuda"
MODULES = (
    *("torch", "ray", "vllm.v1.engine.core", "vllm.v1.worker.gpu_worker", "verl.trainer.main_ppo"),
    *("verl.workers.engine_workers", "flashinfer", "triton", "tilelang", "humming", "cutlass", "torchcodec"),
    *("transfer_queue", "tensordict", "transformers.models.qwen2.modeling_qwen2", "raydebug"),
)
# Uses the toolkit's own headers (cuda_bf16) and CCCL's (cub): both have to be of the compiler's release.
KERNEL = """
#include <cub/cub.cuh>
#include <cuda_bf16.h>
__global__ void scale(__nv_bfloat16 *x, float by) {
  using Reduce = cub::BlockReduce<float, 128>;
  __shared__ typename Reduce::TempStorage room;
  float total = Reduce(room).Sum(__bfloat162float(x[threadIdx.x]));
  if (threadIdx.x == 0) x[0] = __float2bfloat16(total * by);
}
int main() { scale<<<1, 128>>>(nullptr, 2.f); return cudaGetLastError(); }
"""
GENERATIONS = ("80", "90", "100")


@pytest.fixture(autouse=True, scope="module")
def image() -> None:
    """The image has to be there: it takes 10 GB and minutes."""
    require_image(IMAGE)


def in_image(script: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a shell script in a container of the image, without a network."""
    options = ("--network", "none", "--shm-size", "1g", "-e", "HOME=/tmp", "-e", "RAY_AUTH_MODE=disabled")
    argv = ["docker", "run", "--rm", *options, IMAGE, "bash", "-c", script]
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.mark.timeout(600)
def test_modules() -> None:
    """All that a training with this flavour imports can be imported without a GPU."""
    done = in_image(f"python -W ignore -c 'import {', '.join(MODULES)}'", 580)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.timeout(400)
def test_compiler() -> None:
    """The lock's compiler makes a program with code for A100, H100 and B200, with its own headers and libraries."""
    code = " ".join(f"-gencode arch=compute_{one},code=sm_{one}" for one in GENERATIONS)
    script = f"""set -e
        cat >/tmp/k.cu <<'END'
{KERNEL}
END
        nvcc -O1 {code} -o /tmp/k /tmp/k.cu
        cd "$(python -c 'import triton; print(triton.__path__[0])')"
        backends/nvidia/bin/cuobjdump --list-elf /tmp/k
        /tmp/k || echo "ended with $?" """
    done = in_image(script, 380)
    assert done.returncode == 0, done.stderr[-3000:]
    for one in GENERATIONS:
        assert f".sm_{one}.cubin" in done.stdout
    assert "ended with 35" in done.stdout, "cudaErrorInsufficientDriver: there is no driver, or an older one"


@pytest.mark.timeout(200)
def test_missing_driver() -> None:
    """`check env` says of a training that this machine has no GPU for it, and what to do."""
    done = in_image("! command -v nvidia-smi >/dev/null; raydebug check env -- python -m verl.trainer.main_ppo", 180)
    assert "there is no GPU here  [env.no-gpu]" in done.stdout + done.stderr
    assert "run it on a GPU host" in done.stdout + done.stderr
