"""Programs that fail in Ray or in plain Python, and one that does not: `python ray_cases.py NAME`; see cases.toml."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import urllib.request

import ray


def start(**options):
    ray.init(num_cpus=4, include_dashboard=False, **options)


@ray.remote(max_retries=0)
def call(function, *arguments):
    return function(*arguments)


@ray.remote
class Worker:
    def __init__(self, function=None):
        self.value = None if function is None else function()

    def call(self, function, *arguments):
        return function(*arguments)


# A worker ends


def exits():
    os._exit(7)


def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def reads_address_0():
    ctypes.string_at(0)


def actor_exits():
    start()
    worker = Worker.remote()
    ray.get(worker.call.remote(exits))


def actor_killed():
    start()
    worker = Worker.remote()
    ray.get(worker.call.remote(is_killed))


def task_segfault():
    start()
    ray.get(call.remote(reads_address_0))


# The user's own errors


def grade(row):
    return row["answer"].strip() == row["completion"].strip()


def grade_all(rows):
    return ray.get([call.remote(grade, row) for row in rows])


def key_error():
    start()
    ray.get(call.remote(grade, {"question": "1+1", "completion": "2"}))


def nested_error():
    start()
    ray.get(call.remote(grade_all, [{"answer": None, "completion": "2"}]))


def read_limit():
    return int(os.environ.get("REWARD_LIMIT"))


def actor_init_error():
    start()
    worker = Worker.remote(read_limit)
    ray.get(worker.call.remote(time.time))


def driver_error():
    rows = [line.split(",") for line in ("a,1", "b,2", "c")]
    print({row[0]: row[1] for row in rows})


def ask_tool():
    return urllib.request.urlopen("http://127.0.0.1:9/run", timeout=5).read()


def tool_server_down():
    start()
    ray.get(call.remote(ask_tool))


def import_missing():
    import math_verify_x

    return math_verify_x.parse("1")


def missing_package():
    start()
    ray.get(call.remote(import_missing))


# What cannot be pickled


def pickle_lock():
    start()
    ray.put({"lock": threading.Lock()})


def pickle_closure():
    start()
    log = open("rewards.log", "w")  # noqa: SIM115, PTH123 - stays open

    @ray.remote
    def score():
        log.write("1\n")

    ray.get(score.remote())


def pickle_spawn():
    context = multiprocessing.get_context("spawn")
    context.Process(target=lambda: 1).start()


# Memory, disk, files, threads


def fill(count_bytes):
    blocks = []
    for _ in range(0, count_bytes, 2**24):
        blocks.append(b"x" * 2**24)
        time.sleep(0.02)  # Ray looks ten times a second
    return len(blocks)


def memory_monitor():
    import psutil

    memory = psutil.virtual_memory()
    threshold = round(memory.percent / 100 + 0.08, 2)
    start(_system_config={"memory_usage_threshold": threshold, "memory_monitor_refresh_ms": 100})
    print(ray.get(call.remote(fill, memory.total // 5)))


def memory_limit():
    blocks = []
    while True:
        blocks.append(b"x" * 2**26)


def killed_by_kernel():
    start(object_store_memory=100 * 2**20)
    worker = Worker.remote()
    ray.get(worker.call.remote(fill, 8 * 2**30))


def spill_to_full_disk():
    place = json.dumps({"type": "filesystem", "params": {"directory_path": "full"}})
    start(object_store_memory=80 * 2**20, _system_config={"object_spilling_config": place})
    held = [ray.put(b"x" * 20 * 2**20) for _ in range(20)]
    print(len(held))


def save_rollouts():
    with open("full/rollouts.jsonl", "w") as file:  # noqa: PTH123
        for number in range(100_000):
            file.write(json.dumps({"step": number, "text": "x" * 100}) + "\n")


def write_to_full_disk():
    start()
    os.chdir("/")
    ray.get(call.remote(lambda: (os.chdir(os.environ["RUN"]), save_rollouts())))


def open_files():
    held = [open(f"shard-{number}.jsonl", "w") for number in range(100)]  # noqa: SIM115, PTH123
    print(len(held))


def ray_files():
    start()
    print(ray.get(call.remote(grade, {"answer": "2", "completion": "2"})))


def many_threads():
    for _ in range(100):
        threading.Thread(target=time.sleep, args=(5,)).start()


# What Ray does not have


def no_gpu():
    start()
    print(ray.get(call.options(num_gpus=1).remote(time.time), timeout=25))


def placement_group():
    start()
    group = ray.util.placement_group([{"CPU": 4}] * 4)
    ray.get(group.ready(), timeout=10)


def no_head():
    ray.init("10.0.0.1:6379")


def train_on_head():
    ray.init("auto")
    for step in range(60):
        print("trained", ray.get(call.remote(time.time)), step, flush=True)
        time.sleep(1)


def slow_start():
    start()
    ray.get(call.remote(time.time), timeout=30)


def long_temp_dir():
    start(_temp_dir="/tmp/" + "experiment/" * 10)


def temp_dir_of_another():
    start()


# Breakpoints


def look(row):
    breakpoint()  # noqa: T100
    return grade(row)


def breakpoint_in_task():
    start()
    ray.get(call.remote(look, {"answer": "2", "completion": "2"}))


def breakpoint_in_driver():
    look({"answer": "2", "completion": "2"})


# Several processes


def compute_score(data_source, solution, truth):
    return 1.0 if float(solution.split("####")[1]) == truth else 0.0


def score_share(rank):
    solutions = ["6 times 7 is #### 42"] * 20
    if rank == 5:
        solutions[13] = "I do not know"
    time.sleep(1)
    return [compute_score("gsm8k", solution, 42) for solution in solutions]


def reward_in_one_of_8():
    start()
    workers = [Worker.options(num_cpus=0).remote() for _ in range(8)]
    print(ray.get([worker.call.remote(score_share, rank) for rank, worker in enumerate(workers)]))


def save_share(folder):
    path = f"{os.environ['RUN']}/{folder}/checkpoint.bin"
    print("saving", path)
    with open(path, "wb") as file:  # noqa: PTH123
        file.write(b"x" * 8 * 2**20)
    return path


def disk_full_on_one_node():
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "resources": {"head": 1}})
    cluster.add_node(num_cpus=1, resources={"second": 1})
    ray.init(cluster.address)
    places = {"head": "free", "second": "full"}
    workers = {place: Worker.options(resources={node: 1}).remote() for node, place in places.items()}
    print(ray.get([worker.call.remote(save_share, place) for place, worker in workers.items()]))


# Nothing fails


def train_step(step):
    time.sleep(0.2)
    return {"loss": 1.0 / (step + 1)}


def healthy():
    start()
    worker = Worker.remote()
    for step in range(5):
        print(f"step:{step} - loss:{ray.get(worker.call.remote(train_step, step))['loss']:.3f}")
    try:
        ray.get(call.remote(grade, {}))
    except KeyError:
        print("a row without an answer is skipped")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
