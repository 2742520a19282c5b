"""The reward function of a training with planted stalls (planted_verl.py)."""

from __future__ import annotations

import os
import re
import threading
import time
import urllib.error
import urllib.request

from sitecustomize import planted

SERVER = os.environ["SERVER"]
ONE_BY_ONE = threading.Lock()


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_options):  # type: ignore[no-untyped-def]
    """Score a response, and stall as planted."""
    plant = planted()
    if plant == "endless reward":
        simplify()
    elif plant == "regex":
        re.match(r"(a+)+$", "a" * 26 + "b")  # some seconds, with Python's lock held
        while planted() == "regex":
            re.match(r"(a+)+$", "a" * 26 + "b")
    elif plant == "judge":
        ask_judge(f"{SERVER}/judge?key=not-to-be-shown")
    elif plant == "long reward":
        with ONE_BY_ONE:
            time.sleep(float(os.environ["LONG_S"]))
    text = solution_str or ""
    return sum(character.isdigit() for character in text) / max(1, len(text))


def simplify() -> None:
    """Compute as long as the stall is on, at ever other lines."""
    number, looked = 1, time.monotonic()
    while True:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        if number == 1:
            number = 27
        if time.monotonic() - looked > 0.5:
            looked = time.monotonic()
            if planted() != "endless reward":
                return


def ask_judge(url: str) -> None:
    """Ask until there is another answer than 429."""
    while planted() == "judge":
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except urllib.error.HTTPError:
            time.sleep(1)
