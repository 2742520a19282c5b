"""The page of a snapshot of torch's GPU allocator, or of what changed since another one."""

from __future__ import annotations

from raydebug.protocol.snapshot import GpuSummary
from raydebug.report.page import page, section, table_row, tag, wide_table
from raydebug.report.units import mebibytes
from raydebug.snapshot.gpu_memory import changes, gpu_memory_lines


def gpu_memory_page(name: str, now: GpuSummary, before: GpuSummary | None = None, before_name: str = "") -> str:
    """Return the page; `name` and `before_name` are the files."""
    first, *more = gpu_memory_lines(now, before)
    failed = [tag("p", line, class_="title") for line in more if line.startswith(("out of", "cause:"))]
    about = [tag("p", first), tag("p", f"compared with {before_name}") if before is not None else None]
    error = tag("section", failed, class_="error") if failed else None
    head = tag("header", tag("p", "raydebug memory", class_="kicker"), tag("h1", f"GPU memory: {name}"), about, error)
    rows = []
    for row, size, count in changes(now, before):
        change = (
            [f"{'-' if size < 0 else '+'}{mebibytes(abs(size) / 2**20)}", f"{count:+d}"] if before is not None else []
        )
        rows.append(table_row(tag("code", row["line"]), mebibytes(row["bytes"] / 2**20), str(row["count"]), *change))
    columns = ["line", "live", "tensors", *(["change", "change of tensors"] if before is not None else [])]
    note = "The innermost line of the program that allocated what is live; what grew most, or is largest, first."
    table = wide_table("live memory by line", "metrics", columns, rows)
    return page(f"GPU memory: {name}", head, tag("main", section("Live memory by line", table, note=note)))
