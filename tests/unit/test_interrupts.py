"""Ctrl-C that Python loses is remembered, and a second one ends nothing half-way."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from raydebug.cluster import up


@pytest.fixture(autouse=True)
def ctrl_c():
    """Ctrl-C as at a terminal: a shell starts its background jobs with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_lost_one_is_remembered():
    """A Ctrl-C whose exception is dropped on its way is raised at the next look; the one before is forgotten."""
    for _ in range(2):
        with up.notice_interrupts():
            up.raise_if_interrupted()
            with contextlib.suppress(BaseException):
                press()
            with pytest.raises(KeyboardInterrupt):
                up.raise_if_interrupted()


def test_second_one_is_ignored():
    """What must not stop half-way is not stopped, and afterwards Ctrl-C is what it was."""
    before = signal.getsignal(signal.SIGINT)
    with up.notice_interrupts(), up.ignore_interrupts():
        press()
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        press()


def test_the_one_that_ends_the_program_is_the_last():
    """After the Ctrl-C that ends a verb no other is heard: Python, on its way out, would die of it without our code."""
    with pytest.raises(KeyboardInterrupt), up.notice_interrupts():
        press()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
