"""What a warm cluster's pool holds, and how much memory that is."""

from __future__ import annotations

import json
from typing import Any

from raydebug.cluster.state import Cluster


def pool_of(cluster: Cluster) -> dict[str, Any] | None:
    """Return the pool of a warm cluster: its zygotes with their memory in MiB, and its cold starts; None without one.

    Own memory is what a zygote alone holds; shared memory is held by its forks too, and counts once.
    """
    if not cluster.warm:
        return None
    try:
        pool: dict[str, Any] = json.loads(cluster.pool_status.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"pid": None, "zygotes": [], "cold": 0, "last_cold": []}
    for zygote in pool["zygotes"]:
        zygote["own_mib"], zygote["shared_mib"] = _memory_mib(zygote["pid"])
    return pool


def _memory_mib(pid: int) -> tuple[int, int]:
    import psutil

    try:
        memory = psutil.Process(pid).memory_full_info()
    except psutil.Error:
        return 0, 0
    return memory.uss >> 20, (memory.rss - memory.uss) >> 20
