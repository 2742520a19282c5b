"""The time limits that would end a paused rank are widened, and never lowered."""

from __future__ import annotations

import datetime
import sys
import types

import pytest

from raydebug.errors import UsageError
from raydebug.protocol import variables
from raydebug.settings.debugger import TIME_LIMITS, WIDE_S, choose_mode, recorder_variables, widened
from raydebug.worker import torch_hooks


def test_users_own_limits_stay():
    """A limit that the user has set stays; every other one is widened to a day."""
    mine = {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "30"}
    assert widened(mine) == {name: str(WIDE_S) for name in TIME_LIMITS if name not in mine}
    assert variables.GROUP_TIMEOUT in widened({})


@pytest.mark.parametrize(
    ("asked_s", "made_s"), [(None, 86400), (600, 86400), (90000, 90000)], ids=["default", "shorter", "longer"]
)
def test_group_timeout(monkeypatch, asked_s, made_s):
    """A process group gets the wide timeout, wherever its own one was given; a longer one stays."""
    made = []

    def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1):
        made.append(timeout)

    def new_group(ranks=None, timeout=None):
        made.append(timeout)

    module = types.ModuleType("distributed_c10d")
    module.init_process_group, module.new_group = init_process_group, new_group
    monkeypatch.setenv(variables.GROUP_TIMEOUT, str(WIDE_S))
    torch_hooks.widen_groups(module)
    asked = None if asked_s is None else datetime.timedelta(seconds=asked_s)
    module.init_process_group("gloo", None, asked)
    module.new_group([0], timeout=asked)
    assert made == [datetime.timedelta(seconds=made_s)] * 2
    with pytest.raises(TypeError):
        module.new_group(nonsense=1)


def test_nearest_limit_of_a_process_without_groups(monkeypatch):
    """A process without torch's groups has no limit to warn of."""
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    assert torch_hooks.nearest_watchdog() is None


@pytest.mark.parametrize("name", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_flight_recorder(name: str) -> None:
    """`run` turns torch's flight recorder on, unless the user has set its size, by the new name or the old one."""
    assert recorder_variables({}) == {"TORCH_FR_BUFFER_SIZE": "2000"}
    assert recorder_variables({name: "0"}) == {}


@pytest.mark.parametrize(
    ("flag", "variable", "value", "what"),
    [
        (None, "RAY_DEBUG", "true", "RAY_DEBUG=true means nothing to Ray"),
        ("breakpoint", "RAY_DEBUG", "true", "RAY_DEBUG=true means nothing to Ray"),
        (None, "RAY_DEBUG_POSTMORTEM", "1", "RAY_DEBUG_POSTMORTEM=1 means nothing to Ray"),
        ("off", "RAY_DEBUG", "1", "--debugger off clashes with your environment"),
        (None, "RAY_DEBUG", "legacy", "RAY_DEBUG=legacy is set in your environment"),
    ],
)
def test_variables_that_choose_no_mode(flag: str | None, variable: str, value: str, what: str) -> None:
    """The fix of a variable that Ray would ignore, or that says something else than the flag, is one that works."""
    with pytest.raises(UsageError) as failure:
        choose_mode(flag, {variable: value})
    assert failure.value.what == what
    assert f"unset {variable}" in failure.value.fix
