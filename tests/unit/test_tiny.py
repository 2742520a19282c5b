"""The parts of `raydebug tiny` that need neither torch nor pyarrow."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from raydebug.errors import RaydebugError
from raydebug.tiny import appearing
from raydebug.tiny.dataset import build_dataset
from raydebug.tiny.model import build_model, rename_token_ids, shrink


def test_every_size_shrinks_and_nothing_else_changes() -> None:
    """Sizes become small, in nested configs too; what is no size stays; a smaller size is kept."""
    small = shrink(
        {
            "model_type": "x", "rms_norm_eps": 1e-6, "hidden_size": 4096, "num_hidden_layers": 1,
            "num_attention_heads": 32, "num_key_value_heads": 8, "layer_types": ["full_attention"] * 40,
            "vision_config": {"depth": 32, "hidden_size": 1280, "num_heads": 16, "out_hidden_size": 4096},
            "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        }
    )  # fmt: skip
    assert small == {
        "model_type": "x", "rms_norm_eps": 1e-6, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "layer_types": ["full_attention"],
        "vision_config": {"depth": 2, "hidden_size": 64, "num_heads": 2, "out_hidden_size": 64},
        "rope_scaling": {"type": "mrope", "mrope_section": [6, 5, 5]},
    }  # fmt: skip


def test_heads_that_are_not_grouped_stay_so() -> None:
    """As many key heads as query heads before, as many after."""
    assert shrink({"num_attention_heads": 12, "num_key_value_heads": 12})["num_key_value_heads"] == 2


def test_token_ids_follow_the_vocabulary() -> None:
    """Ids are replaced one by one and in lists, in nested configs too; one without a successor is None."""
    renamed = rename_token_ids(
        {"eos_token_id": [5, 9], "pad_token_id": 7, "text_config": {"bos_token_id": 5}, "hidden_size": 5},
        {5: 1, 9: 2}.get,
    )
    assert renamed == {
        "eos_token_id": [1, 2], "pad_token_id": None, "text_config": {"bos_token_id": 1}, "hidden_size": 5,
    }  # fmt: skip


def test_folder_appears_whole(tmp_path: Path) -> None:
    """The folder is there only when its contents are complete, with the rights that the umask allows."""
    with appearing(tmp_path / "deep" / "m") as folder:
        (folder / "a").write_text("1")
        (folder / "a").chmod(0o600)
        assert not (tmp_path / "deep" / "m").exists()
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "deep" / "m" / "a").stat().st_mode & 0o777 == 0o666 & ~mask
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["m"]


@pytest.mark.parametrize(
    ("failure", "shown"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), RaydebugError),
        (RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"), RaydebugError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (ZeroDivisionError(), ZeroDivisionError),
    ],
)
def test_failed_build_leaves_nothing(failure: BaseException, shown: type[BaseException], tmp_path: Path) -> None:
    """A full disk, however a library reports it, is three lines; Ctrl-C and our own faults pass; nothing is left."""

    def build_half() -> None:
        with appearing(tmp_path / "m") as folder:
            (folder / "half").write_text("half")
            raise failure

    with pytest.raises(shown) as raised:
        build_half()
    assert list(tmp_path.iterdir()) == []
    if shown is RaydebugError:
        lines = str(raised.value).splitlines()
        assert lines[0] == f"error: no space left for '{tmp_path / 'm'}'"
        assert "No space left on device" in lines[1]
        assert lines[2] == "fix: free some space there, or name a folder on another disk; nothing was left behind"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A folder with something in it is refused, and stays as it is."""
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(RaydebugError) as refused, appearing(tmp_path):
        pass
    assert refused.value.what == f"'{tmp_path}' exists already"
    assert refused.value.exit_code == 2
    assert (tmp_path / "mine").read_text() == "mine"


def test_folder_without_config_is_no_model(tmp_path: Path) -> None:
    """--like on a folder without config.json is three lines, before anything heavy is imported."""
    with pytest.raises(RaydebugError) as refused:
        build_model(tmp_path / "m", like=tmp_path)
    assert str(refused.value) == (
        f"error: '{tmp_path}' is not a model\n"
        f"cause: there is no file '{tmp_path / 'config.json'}'\n"
        "fix: give --like the folder of a downloaded model, the one with config.json in it"
    )
    assert refused.value.exit_code == 2
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(("missing", "build"), [("torch", build_model), ("pyarrow", build_dataset)])
def test_missing_library_names_the_flavour(
    missing: str, build: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without torch, transformers or pyarrow the error names the flavour that has them."""
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(RaydebugError) as refused:
        build(tmp_path / "m")  # type: ignore[operator]
    assert refused.value.what.startswith("a tiny ")
    assert "core flavour" in refused.value.cause
    assert "env/cpu.lock" in refused.value.fix
    assert list(tmp_path.iterdir()) == []
