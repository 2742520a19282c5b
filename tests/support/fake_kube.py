"""A Kubernetes API server just large enough for `kubectl exec -i`: it runs the command on this machine.

    python tests/support/fake_kube.py PORT
    kubectl --server http://127.0.0.1:PORT exec -i svc/train-head-svc -c ray-head -- hostname

It has one service and one pod with a container `ray-head`. The protocol is v5.channel.k8s.io over a WebSocket (kubectl
1.31 or later): the first byte names the channel: 0 stdin, 1 stdout, 2 stderr, 3 the status as JSON, 255 the end of one.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from aiohttp import WSMsgType, web

STDIN, STDOUT, STDERR, STATUS, CLOSE = 0, 1, 2, 3, 255
LABELS = {"ray.io/cluster": "train", "ray.io/node-type": "head"}
POD = {
    "kind": "Pod", "apiVersion": "v1", "metadata": {"name": "train-head-x", "namespace": "default", "labels": LABELS},
    "spec": {"containers": [{"name": "ray-head"}]}, "status": {"phase": "Running"},
}  # fmt: skip
SERVICE = {
    "kind": "Service", "apiVersion": "v1", "metadata": {"name": "train-head-svc", "namespace": "default"},
    "spec": {"selector": LABELS, "clusterIP": "None"},
}  # fmt: skip
RESOURCES = [
    {"name": name, "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": ["get", "list"],
     "shortNames": [short]}
    for name, kind, short in (("pods", "Pod", "po"), ("services", "Service", "svc"))
]  # fmt: skip
ANSWERS: dict[str, dict[str, Any]] = {
    "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": RESOURCES},
    "/api/v1/namespaces/default/pods": {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [POD]},
    "/api/v1/namespaces/default/pods/train-head-x": POD,
    "/api/v1/namespaces/default/services/train-head-svc": SERVICE,
}


async def answer(request: web.Request) -> web.StreamResponse:
    """Answer with a document that is known, else with 404."""
    known = ANSWERS.get(request.path)
    missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
               "message": f"{request.path} not found"}  # fmt: skip
    return web.json_response(known or missing, status=200 if known else 404)


async def execute(request: web.Request) -> web.StreamResponse:
    """Run the command of `kubectl exec`, with its stdin, stdout and stderr on the WebSocket."""
    if request.query.get("container") != "ray-head" or request.headers.get("Upgrade", "").lower() != "websocket":
        return web.Response(status=400)
    far = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
    await far.prepare(request)
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*request.query.getall("command"), stdin=pipe, stdout=pipe, stderr=pipe)

    async def send(channel: int, stream: asyncio.StreamReader | None) -> None:
        while stream and (data := await stream.read(32768)):
            await far.send_bytes(bytes([channel]) + data)

    async def take() -> None:
        assert child.stdin is not None
        async for message in far:
            if message.type is WSMsgType.BINARY and message.data[:1] == bytes([STDIN]):
                child.stdin.write(message.data[1:])
                await child.stdin.drain()
            elif message.type is WSMsgType.BINARY and message.data[:2] == bytes([CLOSE, STDIN]):
                child.stdin.close()
        if child.returncode is None:
            child.kill()

    taking = asyncio.ensure_future(take())
    await asyncio.gather(send(STDOUT, child.stdout), send(STDERR, child.stderr))
    code = await child.wait()
    status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if code:
        causes = [{"reason": "ExitCode", "message": str(code)}]
        status |= {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
    await far.send_bytes(bytes([STATUS]) + json.dumps(status).encode())
    await far.close()
    taking.cancel()
    return far


if __name__ == "__main__":
    app = web.Application()
    app.router.add_route("*", "/api/v1/namespaces/default/pods/train-head-x/exec", execute)
    app.router.add_route("*", "/{path:.*}", answer)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
