"""The options of `raydebug up`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from raydebug.cluster.state import DEFAULT_NAME


@dataclass(frozen=True)
class UpOptions:
    """The options of `up`, for a cluster of either kind; None leaves the choice to raydebug.

    Args:
        name: the cluster's name.
        cpus, gpus: logical CPUs and GPUs of a node.
        debugger: debugger mode.
        dashboard_port, gateway_port: ports on this machine; 0 takes a free one.
        python: local: the interpreter whose environment Ray runs in; None for this one.
        owner: local: process id with whose end the cluster ends.
        prefork: local: keep pre-forked processes with the heavy imports done.
        end_when_hung: local: end the cluster when Ray has not answered for ray_node.HUNG_AFTER_S.
        flavour: compose: core, cpu or cuda.
        workers: compose: number of worker nodes.
        project: compose: folder of this machine that the containers have as /workspace.
        mounts: compose: SOURCE:TARGET[:ro] of further folders.
        hf_cache: compose: mount the user's Hugging Face cache.
        env_file: compose: file with KEY=VALUE lines for the nodes.
    """

    name: str = DEFAULT_NAME
    cpus: int | None = None
    gpus: int | None = None
    debugger: str = "breakpoint"
    dashboard_port: int | None = None
    gateway_port: int | None = None
    python: str | None = None
    owner: int | None = None
    prefork: bool = False
    end_when_hung: bool = False
    flavour: str | None = None
    workers: int = 1
    project: Path = Path()
    mounts: list[str] = field(default_factory=list)
    hf_cache: bool = False
    env_file: Path | None = None

    @property
    def ports(self) -> dict[str, int | None]:
        """The ports that the user named, by purpose."""
        return {"dashboard": self.dashboard_port, "gateway": self.gateway_port}
