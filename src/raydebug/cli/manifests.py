"""`raydebug up --cluster kubernetes --dry-run`: the manifest on stdout, and what to do with it."""

from __future__ import annotations

from raydebug import render
from raydebug.cluster.kubernetes import Wanted, manifest, next_steps
from raydebug.errors import UsageError


def show_manifest(wanted: Wanted, unfit: list[str], *, dry_run: bool, as_json: bool) -> None:
    """Print the manifest of a cluster; `unfit` are options that it has no place for.

    Raises:
        RaydebugError: something is missing, or cannot be.
    """
    if unfit:
        raise UsageError(
            f"{' and '.join(unfit)} {'is' if len(unfit) == 1 else 'are'} not for --cluster kubernetes",
            cause="a manifest has no place for it", fix="leave it out, and change what --dry-run prints",
            code="kubernetes.options",
        )  # fmt: skip
    text, steps = manifest(wanted), next_steps(wanted)
    if not dry_run:
        raise UsageError(
            "raydebug starts nothing on Kubernetes itself",
            cause="it has no access there: kubectl has, with your account; raydebug writes the manifest",
            fix="the same command with `--dry-run | kubectl apply -f -`, then the `raydebug up --join` that it prints",
            code="kubernetes.dry-run",
        )
    if as_json:
        render.out_json({"version": 1, "manifest": text, "next": steps})
        return
    render.out(text.rstrip())
    if "@" not in wanted.image:  # no refusal: an image that was loaded into kind or minikube has no digest
        render.say(f"warning: {wanted.image} has no digest: two pods may get different images; use NAME@sha256:...")
    for line in ("next: pipe this into `kubectl apply -f -`; when its pods run:", *(f"  {step}" for step in steps)):
        render.say(line)
