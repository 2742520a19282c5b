"""`tensor` and `diff` on real tensors of two ranks: gloo, FSDP and DTensors, but no training."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway_under_test import GatewayUnderTest, open_gateway
from paused_programs import PausedProgram
from raydebug.client.gateway_client import fetch_pauses
from raydebug.console.attach import attach_group
from raydebug.console.selection import Selection
from raydebug.console.session import GatewayAddress

START_LIMIT_S = 120.0
pytestmark = pytest.mark.timeout(300)  # two processes with torch, beside whatever else runs
RANK = Path(__file__).resolve().parents[1] / "support" / "rank_tensors.py"

Ask = Callable[..., list[str]]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayUnderTest]:
    """A gateway with two ranks paused at one line."""
    folder = tmp_path_factory.mktemp("ranks")
    with open_gateway(folder) as opened:
        programs = []
        for rank in ("0", "1"):
            (folder / rank).mkdir()
            variables = {"RANK": rank, "MEETING": str(folder / "meeting")}
            programs.append(PausedProgram(opened, folder / rank, RANK.read_text(), START_LIMIT_S, **variables))
        try:
            assert all(program.pause for program in programs)
            yield opened
        finally:
            for program in programs:
                program.close()


@pytest.fixture
def ask(gateway: GatewayUnderTest, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run commands at both ranks and return the lines that they print."""

    def run(*commands: str, ranks: set[int] | None = None) -> list[str]:
        capsys.readouterr()
        console = GatewayAddress(gateway.gateway_host, gateway.gateway_port, gateway.token)
        selection = Selection(ranks=None if ranks is None else frozenset(ranks))
        code = attach_group(console, selection, lambda: fetch_pauses(gateway), commands=commands)
        shown = capsys.readouterr()
        assert (code, shown.err) == (0, ""), shown.out + shown.err
        return shown.out.splitlines()

    return run


T, N, D = "torch.Tensor", "torch.nested._internal.nested_tensor.NestedTensor", "torch.distributed.tensor.DTensor"
EQUAL = "(all equal)"
CASES = {
    "bf16": [
        f"rank 0: {T}  [6]  bfloat16  cpu  norm 7.4162  min 0  max 5  mean 2.5",
        f"rank 1: {T}  [6]  bfloat16  cpu  norm 7.92938  min 0.25  max 5.25  mean 2.75",
        "  rank 1 against rank 0: max difference 0.25, 6 of 6 elements differ",
    ],
    "odd": [
        f"rank 0: {T}  [3]  float32  cpu  norm 2.23607  min 1  max 2  mean 1.5  Inf 1",
        f"rank 1: {T}  [3]  float32  cpu  norm 1  min 1  max 1  mean 1  NaN 1  Inf 1",
        "  rank 1 against rank 0: max difference 0, 1 of 3 elements differ, 1 of them NaN on one side",
    ],
    "sizes": [
        f"rank 0: {T}  [2x3]  float32  cpu  norm 2.44949  min 1  max 1  mean 1",
        f"rank 1: {T}  [2x4]  float32  cpu  norm 2.82843  min 1  max 1  mean 1",
        "  rank 1 against rank 0: another shape",
    ],
    "empty": [f"ranks 0, 1: {T}  [0x4]  float32  cpu  {EQUAL}"],
    "learned": [
        "rank 0: torch.nn.parameter.Parameter  [2]  float32  cpu  norm 1.41421  min 1  max 1  mean 1",
        "rank 1: torch.nn.parameter.Parameter  [2]  float32  cpu  norm 2.82843  min 2  max 2  mean 2",
        "  rank 1 against rank 0: max difference 1, 2 of 2 elements differ",
    ],
    "long": [
        f"rank 0: {T}  [2097152]  float32  cpu  norm 0  min 0  max 0  mean 0",
        f"rank 1: {T}  [2097152]  float32  cpu  norm 1  min 0  max 1  mean 4.76837e-07",
        "  rank 1 against rank 0: norm differs by 1; 2097152 elements, at most 1048576 are compared one by one",
    ],
    "huge": [
        f"ranks 0, 1: {T}  [33554433]  float64  cpu  norm 0  min 0  max 0  mean 0  {EQUAL}",
        "  too large to be compared byte by byte: judged by norm, min, max and mean",
    ],
    "whole": [
        f"rank 0: {T}  [2]  int64  cpu  norm 1.09951e+12  min 0  max 1.09951e+12  mean 5.49756e+11",
        f"rank 1: {T}  [2]  int64  cpu  norm 1.09951e+12  min 1  max 1.09951e+12  mean 5.49756e+11",
        "  rank 1 against rank 0: max difference 1, 1 of 2 elements differ",
    ],
    "flags": [
        f"rank 0: {T}  [2]  bool  cpu  norm 1  min 0  max 1  mean 0.5",
        f"rank 1: {T}  [2]  bool  cpu  norm 1.41421  min 1  max 1  mean 1",
        "  rank 1 against rank 0: max difference 1, 1 of 2 elements differ",
    ],
    "view": [f"ranks 0, 1: {T}  [2]  complex64  cpu  norm 3.87298  min 2.23607  max 3.16228  mean 2.69917  {EQUAL}"],
    "eight": [
        f"rank 0: {T}  [2]  float8_e4m3fn  cpu  norm 2.23607  min 1  max 2  mean 1.5",
        f"rank 1: {T}  [2]  float8_e4m3fn  cpu  norm 4.12311  min 1  max 4  mean 2.5",
        "  rank 1 against rank 0: max difference 2, 1 of 2 elements differ",
    ],
    "meta": [f"ranks 0, 1: {T}  [5]  float32  meta  a meta tensor holds no values"],
    "rows": [f"ranks 0, 1: {N}  [2x2..3]  float32  cpu  nested, 2 rows  norm 2.44949  min 0  max 2  mean 0.8  {EQUAL}"],
    "split": [
        f"rank 0: {N}  [2x2..3]  float32  cpu  nested, 2 rows  norm 2.23607  min 1  max 1  mean 1",
        f"rank 1: {N}  [2x2..3]  float32  cpu  nested, 2 rows  norm 2.23607  min 1  max 1  mean 1",
        "  rank 1 against rank 0: rows of other sizes",
    ],
    "holes": [
        f"ranks 0, 1: {N}  [3x2..4]  float32  cpu  nested, 3 rows  norm 21.8403  min 0  max 11  mean 6.33333  {EQUAL}"
    ],
    "strided": [
        f"ranks 0, 1: {T}  [2x2..3x2]  float32  cpu  nested, 2 rows  norm 3.16228  min 1  max 1  mean 1  {EQUAL}"
    ],
    "places": [
        f"rank 0: {T}  [4]  float32  cpu  sparse  norm 2.23607  min 1  max 2  mean 1.5",
        f"rank 1: {T}  [4]  float32  cpu  sparse  norm 2.23607  min 1  max 2  mean 1.5",
        "  rank 1 against rank 0: its values stand elsewhere",
    ],
    "by_rows": [f"ranks 0, 1: {T}  [3x3]  float32  cpu  sparse_csr  norm 1.73205  min 1  max 1  mean 1  {EQUAL}"],
    "shard": [
        f"rank 0: {D}  [6x4]  float32  cpu  shard 0 of 2 [3x4] by S(0)  norm 22.4944  min 0  max 11  mean 5.5",
        f"rank 1: {D}  [6x4]  float32  cpu  shard 1 of 2 [3x4] by S(0)  norm 61.79  min 12  max 23  mean 17.5",
        "  the whole, from its 2 shards: norm 65.7571  min 0  max 23  mean 11.5",
    ],
    "hybrid": [
        f"rank 0: {D}  [6x4]  float32  cpu  shard 0 of 2 [6x2] by R, S(1)  norm 43.4281  min 0  max 21  mean 10.5",
        f"rank 1: {D}  [6x4]  float32  cpu  shard 1 of 2 [6x2] by R, S(1)  norm 49.3761  min 2  max 23  mean 12.5",
        "  the whole, from its 2 shards: norm 65.7571  min 0  max 23  mean 11.5",
    ],
    "mixed": [
        f"rank 0: {T}  [2]  float32  cpu  norm 1.41421  min 1  max 1  mean 1",
        f"rank 1: {D}  [4]  float32  cpu  shard 1 of 2 [2] by S(0)  norm 2.82843  min 2  max 2  mean 2",
        "  parts of different tensors: not compared",
    ],
    "uneven": [
        f"rank 0: {D}  [3]  float32  cpu  shard 0 of 2 [2] by S(0)  norm 1  min 0  max 1  mean 0.5",
        f"rank 1: {D}  [3]  float32  cpu  shard 1 of 2 [1] by S(0)  norm 2  min 2  max 2  mean 2",
        "  the whole, from its 2 shards: norm 2.23607  min 0  max 2  mean 1",
    ],
    "lonely": [
        f"rank 0: {D}  [1]  float32  cpu  shard 0 of 2 [1] by S(0)  norm 1  min 1  max 1  mean 1",
        f"rank 1: {D}  [1]  float32  cpu  shard 1 of 2 [0] by S(0)",
        "  the whole, from its 2 shards: norm 1  min 1  max 1  mean 1",
    ],
    "copy": [
        f"ranks 0, 1: {D}  [6x4]  float32  cpu  all of it [6x4] by R  norm 65.7571  min 0  max 23  mean 11.5  {EQUAL}"
    ],
    "broken": [
        f"rank 0: {D}  [2]  float32  cpu  all of it [2] by R  norm 1.41421  min 1  max 1  mean 1",
        f"rank 1: {D}  [2]  float32  cpu  all of it [2] by R  norm 2.82843  min 2  max 2  mean 2",
        "  rank 1 against rank 0: max difference 1, 2 of 2 elements differ",
    ],
    "share": [
        f"rank 0: {D}  [2]  float32  cpu  share 0 of 2 [2] by P(sum)  norm 1.41421  min 1  max 1  mean 1",
        f"rank 1: {D}  [2]  float32  cpu  share 1 of 2 [2] by P(sum)  norm 2.82843  min 2  max 2  mean 2",
        "  shares of a result that the ranks have not joined yet: not compared",
    ],
}


def test_difference_of_each_kind(ask: Ask) -> None:
    """`diff` tells equal from different for each dtype and layout, and never compares a shard with another one."""
    shown = ask(*(line for name in CASES for line in (f"p '{name}'", f"diff t['{name}']")))
    assert shown == [line for name, lines in CASES.items() for line in (f"[rank 0] '{name}'", *lines)]


def test_whole_of_what_fsdp_has_sharded(ask: Ask) -> None:
    """A parameter's norm, and its gradient's, come from FSDP's shards as torch itself computes them together."""
    flat, *_ = ask("diff t['flat']")
    assert "shard 0 of 2 [10] by a flat parameter of FSDP1 with 20 elements" in flat
    for name in ("weight", "gradient"):
        *shards, whole = ask(f"diff t['{name}']")
        assert [re.search(r"shard \d of 2 \[2x3\] by S\(0\)", line) is not None for line in shards] == [True, True]
        (together,) = ask(f"diff t['{name}'].full_tensor().norm().item()")  # a collective: all ranks run it at once
        norm = re.fullmatch(r"ranks 0, 1: ([\d.]+)  \(all equal\)", together)
        from_shards = re.match(r"  the whole, from its 2 shards: norm ([\d.]+)  min ", whole)
        assert norm is not None
        assert from_shards is not None
        assert math.isclose(float(norm[1]), float(from_shards[1]), rel_tol=1e-5)  # torch sums in float32


def test_shards_of_ranks_that_are_not_here(ask: Ask) -> None:
    """Of a tensor whose other shards are at no prompt no whole is made up."""
    assert ask("diff t['shard']", ranks={1}) == [
        f"rank 1: {D}  [6x4]  float32  cpu  shard 1 of 2 [3x4] by S(0)  norm 61.79  min 12  max 23  mean 17.5",
        "  shards, each with values of its own: not compared (1 of 2 are here)",
    ]


def test_tensor_says_what_is_held(ask: Ask) -> None:
    """`tensor` shows the values that this rank stores, and of what they are a part."""
    assert ask("tensor t['learned']", "@1 tensor t['shard']", "tensor t['rows']", "tensor t['meta']") == [
        "[rank 0] torch.nn.parameter.Parameter  [2]  float32  cpu  requires_grad",
        "[rank 0]   min 1  max 1  mean 1  std 0",
        "[rank 0]   NaN 0  Inf 0",
        "[rank 0]   first [1, 1]",
        f"[rank 1] {D}  [6x4]  float32  cpu",
        "[rank 1]   shard 1 of 2 [3x4] by S(0); the values below are this rank's",
        "[rank 1]   min 12  max 23  mean 17.5  std 3.60555",
        "[rank 1]   NaN 0  Inf 0",
        "[rank 1]   first [12, 13, 14, 15, 16, 17, 18, 19, ...]",
        f"[rank 0] {N}  [2x2..3]  float32  cpu",
        "[rank 0]   nested, 2 rows; the values below are the stored ones",
        "[rank 0]   min 0  max 2  mean 0.8  std 0.83666",
        "[rank 0]   NaN 0  Inf 0",
        "[rank 0]   first [0, 1, 0, 1, 2]",
        f"[rank 0] {T}  [5]  float32  meta",
        "[rank 0]   a meta tensor holds no values",
    ]
