"""Programs that fail in vLLM on a CPU: `python vllm_cases.py NAME`; see cases.toml."""

from __future__ import annotations

import sys
import threading
import time

from model_cases import MODEL, cut, edit


def engine(**options):
    from vllm import LLM

    return LLM(**{"model": "model", "max_model_len": 64, "enforce_eager": True, **options})


def plain():
    print(engine().generate(["1 + 1?"]))


def model_len():
    engine(max_model_len=1_000_000)


def long_prompt():
    engine().generate(["What is 1 plus 2? " * 100])


def kv_cache(tokens=8_000_000, **options):
    edit("config.json", max_position_embeddings=tokens)
    engine(max_model_len=tokens, **options)


def one_long_sequence():
    kv_cache(max_num_seqs=1)


def unknown_model():
    edit("config.json", architectures=["Qwen9ForCausalLM"])
    engine()


def three_ranks():
    engine(tensor_parallel_size=3)


def weights_cut():
    cut(MODEL / "model.safetensors")
    engine()


def old_option():
    engine(use_v2_block_manager=True)


def old_module():
    from vllm.worker.worker import Worker

    print(Worker)


def engine_killed():
    import psutil

    def kill():
        while True:
            for child in psutil.Process().children(recursive=True):
                if child.name().startswith("VLLM"):
                    child.kill()
            time.sleep(0.05)

    threading.Thread(target=kill, daemon=True).start()
    plain()


# Several processes


def rollout_out_of_memory():
    import ray

    @ray.remote(num_cpus=1)
    class Rollout:
        def start(self):
            kv_cache(50_000_000)

    @ray.remote(num_cpus=1)
    class Trainer:
        def wait(self, rollout):
            return ray.get(rollout)

    ray.init(num_cpus=4, include_dashboard=False)
    rollout, trainer = Rollout.remote(), Trainer.remote()
    ray.get(trainer.wait.remote([rollout.start.remote()]))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
