"""Clusters that `docker compose up` started by hand, as the engine describes their containers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from raydebug.cli import pauses
from raydebug.client import gateway_client
from raydebug.cluster import find, stock_pauses
from raydebug.cluster.compose.engine import Container
from raydebug.errors import RaydebugError
from raydebug.protocol.listings import ListedPause


@pytest.fixture
def services(tmp_path: Path) -> list[Container]:
    """The containers of one cluster."""
    token = tmp_path / "token"
    token.write_text("a" * 64)
    mounts = {find.TOKEN_MOUNT: str(token), "/workspace": "/home/me/project"}
    environ = {
        "RAYDEBUG_DASHBOARD": "http://head:8265",
        "RAYDEBUG_GATEWAY_CLIENTS": "gateway:5678",
        "RAYDEBUG_FLAVOUR": "cpu",
    }
    labels = {find.CLUSTER_LABEL: "compose"}
    head = Container(
        "1", "h", "head", "running", "", None, "", 0, 0.0, "raydebug", {8265: 9265}, mounts, labels, environ
    )
    gateway = replace(head, service="gateway", published={5678: 9678})
    return [gateway, head, replace(head, service="worker", published={})]


def test_the_only_one(services):
    """The default name means the only cluster; its published ports, its token's file and its project are known."""
    found = find.pick_by_labels("default", services, recorded=set())
    assert found is not None
    assert (found.name, found.kind, found.flavour) == ("raydebug", "by-hand", "cpu")
    assert (found.dashboard, found.gateway_host, found.gateway_port) == ("http://127.0.0.1:9265", "127.0.0.1", 9678)
    assert (found.token, found.project) == ("a" * 64, "/home/me/project")


def test_addresses_in_the_hosts_own_network(services):
    """Where nothing is published the containers share the host's network: their own addresses hold."""
    environ = {"RAYDEBUG_DASHBOARD": "http://127.0.0.1:8265", "RAYDEBUG_GATEWAY_CLIENTS": "127.0.0.1:5678"}
    services = [replace(one, published={}, environ=environ) for one in services]
    found = find.pick_by_labels("raydebug", services, recorded=set())
    assert found is not None
    assert (found.dashboard, found.gateway_host, found.gateway_port) == ("http://127.0.0.1:8265", "127.0.0.1", 5678)


def test_which_one(services):
    """One of several is named by its project; a cluster with a record is never the default."""
    both = [*services, *(replace(one, project="other") for one in services)]
    with pytest.raises(RaydebugError) as failure:
        find.pick_by_labels("default", both, recorded=set())
    assert str(failure.value) == (
        "error: several clusters of docker compose run here\n"
        "cause: their compose projects are: other, raydebug\n"
        "fix: name one: --name other"
    )
    names = ("default", "raydebug", "other", "none")
    found = [find.pick_by_labels(name, both, recorded={"other"}) for name in names]
    assert [one and one.name for one in found] == ["raydebug", "raydebug", None, None]


def test_token_of_another_user(services):
    """A cluster whose token cannot be read here is named as such."""
    services = [replace(one, mounts={find.TOKEN_MOUNT: "/nowhere/token"}) for one in services]
    with pytest.raises(RaydebugError) as failure:
        find.pick_by_labels("default", services, recorded=set())
    assert failure.value.what == "the token of cluster 'raydebug' cannot be read"
    assert failure.value.cause.startswith("its containers have it from /nowhere/token, which uid ")


def test_pause_that_ray_lists():
    """A pause of a cluster without a gateway has the fields of every pause; those that Ray does not know are null."""
    found = stock_pauses._describe_stock_pause({"worker_id": "0123456789", "num_paused_threads": 1}, {"name": "A.step"})
    assert found.keys() >= ListedPause.__required_keys__
    assert {name for name, value in found.items() if value is not None} == {
        *("id", "worker_id", "task", "is_driver", "threads", "state")
    }
    assert (found["id"], found["task"], found["threads"], found["state"]) == ("01234567", "A.step", 1, "waiting")


def test_attach_with_steal(monkeypatch: pytest.MonkeyPatch):
    """`attach --address URL ID --steal` is refused: nothing can be stolen there."""
    monkeypatch.setattr(pauses, "_find", lambda *_: SimpleNamespace(name="far"))
    monkeypatch.setattr(gateway_client, "fetch_pauses", lambda _: [])
    with pytest.raises(RaydebugError, match="has nothing to steal"):
        pauses.attach("1", steal=True, address="http://127.0.0.1:1")
