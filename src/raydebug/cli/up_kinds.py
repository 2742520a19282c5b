"""Which kind of cluster `up` starts: by --cluster, or by options that only some kinds take. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from raydebug.errors import UsageError

KINDS = ("local", "compose")
# The kinds that take an option; the first one is meant where nothing else says which. Other options are for all.
TAKES = {
    "--python": ("local",),
    "--prefork": ("local", "compose"),
    "--mount": ("compose",),
    "--hf-cache": ("compose",),
    "--env-file": ("compose",),
    "--dry-run": ("compose",),
    "--yes": ("compose",),
    "--write-env": ("compose",),
    "--flavour": ("compose",),
    "--workers": ("compose",),
}
WITHOUT_A_KIND = ("--prefork",)  # it chooses none
WITH_JOIN = ("--join", "--through", "--name", "--debugger", "--gateway-port", "--json")


def choose(asked: str | None, given: Sequence[str]) -> str | None:
    """Return the kind of cluster that the user asks for; None where nothing says it.

    Args:
        asked: of --cluster, or of the record.
        given: the options that the user gave.

    Raises:
        RaydebugError: there is no such kind, or it does not take one of them.
    """
    if asked is not None and asked not in KINDS:
        raise UsageError(
            f"there is no kind of cluster '{asked}'", cause=f"--cluster takes: {', '.join(KINDS)}",
            fix="raydebug up --cluster local", code="cluster.unknown-kind",
        )  # fmt: skip
    kinds: Collection[str] = KINDS if asked is None else (asked,)
    says_it = False
    for option in given:
        says_it |= option in TAKES and option not in WITHOUT_A_KIND
        fitting = [kind for kind in kinds if kind in TAKES.get(option, KINDS)]
        if not fitting:
            _refuse(next(iter(kinds)), [one for one in given if not set(kinds) & set(TAKES.get(one, KINDS))])
        kinds = fitting
    return asked or (next(iter(kinds)) if says_it else None)


def refuse_for_join(url: str, given: Sequence[str]) -> None:
    """Refuse options that a cluster which runs already has no place for.

    Raises:
        RaydebugError: there is one.
    """
    if wrong := [option for option in given if option not in WITH_JOIN]:
        raise UsageError(
            f"{' and '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} not for --join",
            cause="the cluster runs already: it has its sizes, and its Python",
            fix=f"raydebug up --join {url}", code="joined.options",
        )  # fmt: skip


def _refuse(kind: str, options: Sequence[str]) -> None:
    takes = [one for one in KINDS if all(one in TAKES[option] for option in options)] or list(TAKES[options[0]])
    raise UsageError(
        f"{' and '.join(options)} {'is' if len(options) == 1 else 'are'} for --cluster {' or '.join(takes)}",
        cause=f"this is a cluster of the kind {kind}, which has no place for {'it' if len(options) == 1 else 'them'}",
        fix=f"leave {'it' if len(options) == 1 else 'them'} out, or use --cluster {takes[0]}",
        code="cluster.not-containers" if takes[0] == "compose" else f"cluster.not-{takes[0]}",
    )
