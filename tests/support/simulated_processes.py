"""Thousands of processes of a job, simulated by one program, and a client that watches the gateway meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

from raydebug.client.gateway_client import fetch_pauses
from raydebug.protocol import wire

# Seven threads of 26 frames; the first thread of one process in a hundred is elsewhere.
PROCESSES = r"""
import json, os, resource, selectors, sys
from raydebug.protocol import messages, wire
from raydebug.protocol.records import digest_of
from raydebug.worker import dial_in

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
count, pauses, older = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "older"
frames = [{"file": "/job/train.py", "line": line, "function": f"Trainer.step_{line}"} for line in range(26)]
known = {}

def stacks(number, digests):
    threads = []
    for n in range(7):
        own = frames[n:] + frames[:n] if n or number % 100 else frames[: 1 + number // 100 % 20]
        known[digest_of(own)] = own
        shown = {"digest": digest_of(own)} if digests else {"frames": own}
        threads.append({"name": f"thread-{n}", **shown, "cpu_s": number / 7})
    return {"pid": number, "world": None, "threads": threads}

def event(name, body):
    return wire.encode(wire.event(1, name, body))

def answer(number, message):
    asked = message.get("command")
    if asked == "stacks":
        # Made before: this program plays thousands, and must not be what is measured.
        head = f'{{"type":"response","request_seq":{message["seq"]},"success":true,"body":{answers[number]}}}'.encode()
        return b"Content-Length: %d\r\n\r\n%b" % (len(head), head)
    if asked == "frames":
        sent = [{"digest": one, "frames": known[one]} for one in message["arguments"]["digests"]]
        return wire.encode(wire.response(1, message, {"known": sent}))
    return wire.encode(wire.response(1, message, described)) if asked == "describe" else b""

answers = [json.dumps(stacks(number, not older)) for number in range(count)]
described = {"title": "ray::Worker", "actor": "WorkerDict_0:1"}
chosen = selectors.DefaultSelector()
for number in range(count + pauses):
    dial_in._secret = os.urandom(16).hex()
    is_pause = number >= count
    s = dial_in.proven_connection(messages.PAUSE if is_pause else messages.CONTROL, timeout_s=30)
    if not is_pause:
        s.sendall(event(messages.KNOWN, {"breaks": [], "set": []}))
    chosen.register(s, selectors.EVENT_READ, (wire.Decoder(), number))
print("ready", flush=True)
told = set()
while True:
    for key, _ in chosen.select():
        decoder, number = key.data
        data = key.fileobj.recv(65536)
        if not data:
            chosen.unregister(key.fileobj)
            continue
        for m in decoder.feed(data):
            if number < count:
                key.fileobj.sendall(answer(number, m))
            elif m.get("type") == "request":
                key.fileobj.sendall(wire.encode(wire.response(9, m)))
                if m["command"] == "configurationDone" and number not in told:
                    told.add(number)
                    record = {"kind": "breakpoint", "file": "/job/train.py", "line": 12, "function": "step"}
                    key.fileobj.sendall(event(messages.PAUSE_EVENT, {"threadId": 1, "record": record}))
                    key.fileobj.sendall(event("stopped", {"threadId": 1, "reason": "breakpoint"}))
"""


def during_stacks(cluster: Any) -> float:
    """Return the longest time that `paused` took while another client asked for stacks, in seconds."""
    worst, done = [0.0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            began = time.monotonic()
            fetch_pauses(cluster)
            worst.append(time.monotonic() - began)
            done.wait(0.02)

    # In a process of its own: the client that reads megabytes of JSON would hold up this one's threads.
    asks = f"import sys; sys.path[:0] = {sys.path!r}; from types import SimpleNamespace\n"
    asks += "from raydebug.client.gateway_client import fetch_stacks\n"
    asks += f"fetch_stacks(SimpleNamespace(name='x', gateway_host='127.0.0.1', gateway_port={cluster.gateway_port},"
    asks += f" token={cluster.token!r}), timeout_s=10.0)\n"
    watching = threading.Thread(target=watch)
    watching.start()
    try:
        for _ in range(3):
            subprocess.run([sys.executable, "-c", asks], check=True)
    finally:
        done.set()
        watching.join()
    return max(worst)


class Peer:
    """The connection of a process that answers nothing, and keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[wire.Message] = []
        self.closed = False

    def get_extra_info(self, _name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def write(self, data: bytes) -> None:
        self.asked += wire.Decoder().feed(data)
