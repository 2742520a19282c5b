"""What ci/build-twice finds in real images of flavour core: a change of each kind, planted into the second one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import build_twice
from build_twice import require_image

SITE = "/opt/venv/lib/python3.11/site-packages"
FILE = f"{SITE}/yaml/loader.py"
PLANTED = {
    "one byte in a package": (f"sed -i '1s/^/#/' {FILE}; touch -d @1735689600 {FILE}", {FILE}),
    "a time": (f"touch -d @1735689601 {FILE}", {FILE}),
    "a umask": (f"chmod g+w {FILE}", {FILE}),
    "an owner": (f"chown 1000 {FILE}", {FILE}),
    "a package that is not in the lock": (f"mkdir {SITE}/left; touch -d @1735689600 {SITE}", {f"{SITE}/left"}),
    "a file that is missing": (f"rm {FILE}; touch -d @1735689600 {SITE}/yaml", {FILE}),
    "another target of a link": (
        "ln -sfn dash /bin/sh.; mv -T /bin/sh. /bin/sh; ln -sfn bash /usr/bin/sh",
        {"/usr/bin/sh"},
    ),
}
OWN_USER = "USER 1000:1000\n"


@pytest.mark.timeout(900)
def test_planted_changes(tmp_path: Path) -> None:
    """Each planted change is found, by the entry's name; without one there is none."""
    require_image("raydebug:core")
    program = build_twice.load()
    now, commit = time.time(), program.commit_arguments(program.ROOT)
    source = program.check_out(tmp_path / "one", 0o022, now)
    dockerfile = (source / "Dockerfile").read_text(encoding="utf-8")
    with program.tags("as-it-is", "planted") as (plain, planted):
        one = program.build("core", source, plain, *commit)
        entries = one.entries()
        assert program.differences(entries, program.build("core", source, planted, *commit).entries()) == []
        for number, (what, (command, names)) in enumerate(PLANTED.items()):
            other = program.check_out(tmp_path / f"other{number}", 0o022, now)
            text = dockerfile.replace(OWN_USER, f"RUN {command}\n{OWN_USER}", 1)
            (other / "Dockerfile").write_text(text, encoding="utf-8")
            changed = program.build("core", other, planted, *commit)
            assert changed.id != one.id, what
            found = {f"/{line.partition(':')[0]}" for line in program.differences(entries, changed.entries())}
            assert found & names, (what, found)
