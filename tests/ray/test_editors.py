"""An editor on a real cluster: its adapter, and a session for each pause of a job."""

from __future__ import annotations

import asyncio
import sys

import pytest

from gateway_under_test import started
from raydebug.editors import adapter
from raydebug.editors.vscode import configuration_for
from runs import JOBS


@pytest.mark.timeout(120)
def test_f5_opens_each_pause_of_a_cluster(cluster, run):
    """The configuration of `raydebug vscode` automatically opens a session for each of two paused tasks."""
    configuration = configuration_for(cluster.name, JOBS)
    assert configuration["debugAdapterPath"] == adapter.__file__
    assert configuration["debugAdapterPython"] == sys.executable
    assert "pathMappings" not in configuration, "the cluster is on this machine: a file has one name"

    async def look():
        secrets = set()
        async with asyncio.timeout(90), started(configuration) as parent:
            job = await asyncio.to_thread(run, "--", "python", "cases.py", "two_tasks")
            for _ in range(2):
                child = await parent.next_child()
                async with started(child) as session:
                    stopped = (await session.next_event("stopped", timeout_s=10))["body"]
                    thread = {"threadId": stopped["threadId"]}
                    frames = (await session.request("stackTrace", thread))["stackFrames"]
                    assert frames[0]["source"]["path"] == str(JOBS / "cases.py")
                    asked = {"expression": "secret", "frameId": frames[0]["id"]}
                    secrets.add((await session.request("evaluate", asked))["result"])
                    await session.request("continue", thread)
        return job, secrets

    job, secrets = asyncio.run(look())
    assert secrets == {"41", "51"}
    assert "done: two_tasks" in job.end()
