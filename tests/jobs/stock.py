"""Pauses on a cluster without a hook: `python stock.py CASE` with RAY_ADDRESS set."""

from __future__ import annotations

import os
import subprocess
import sys

import ray


@ray.remote(num_cpus=0)
class Actor:
    def method(self, x):
        secret = x + 1
        breakpoint()
        return secret

    def child(self):
        breakpoint()
        answer = subprocess.check_output([sys.executable, "-c", "print('child ran')"], text=True).strip()
        return answer  # noqa: RET504 - a test looks at it


@ray.remote
def crash(scale):
    numbers = []

    def divide():
        return scale / len(numbers)

    return divide()


def main(case):
    # The worker's own environment decides on post-mortem, not the driver's.
    variables = {"RAY_DEBUG_POST_MORTEM": os.environ.get("RAY_DEBUG_POST_MORTEM", "0")}
    ray.init(runtime_env={"env_vars": variables}, log_to_driver=False)
    if case == "crash":
        return ray.get(crash.remote(7))
    actor = Actor.remote()
    return ray.get(actor.method.remote(40) if case == "actor" else actor.child.remote())


if __name__ == "__main__":
    print("done:", main(sys.argv[1]))
