"""Which kind of cluster `up` starts: by --cluster, or by options that only some kinds take. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from raydebug.errors import UsageError

KINDS = ("local", "compose")
# The options that one kind alone takes. All others are for both.
OF_KIND = {
    "--python": "local",
    **dict.fromkeys(("--mount", "--hf-cache", "--env-file", "--dry-run", "--yes", "--write-env"), "compose"),
    **dict.fromkeys(("--flavour", "--workers"), "compose"),
}
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
    kind = asked or next((OF_KIND[option] for option in given if option in OF_KIND), None)
    if wrong := [option for option in given if OF_KIND.get(option, kind) != kind]:
        other, (verb, pronoun) = OF_KIND[wrong[0]], ("is", "it") if len(wrong) == 1 else ("are", "them")
        raise UsageError(
            f"{' and '.join(wrong)} {verb} for --cluster {other}",
            cause=f"this is a cluster of the kind {kind}, which has no place for {pronoun}",
            fix=f"leave {pronoun} out, or use --cluster {other}",
            code="cluster.not-containers" if other == "compose" else f"cluster.not-{other}",
        )
    return kind


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
