"""torchvision beside a torch without CUDA: declares the operators that its library would have brought.

The package index has torchvision for CUDA only. Its `_C.so` is not loaded without CUDA's libraries, and the import
ends: RuntimeError: operator torchvision::nms does not exist. Nothing on the path of a training calls these operators;
without kernels they raise NotImplementedError when called. transformers and vLLM import torchvision in every process,
before any plug-in, so raydebug.pth imports this module in the Pythons that have torchvision and no packages of NVIDIA.

Source: torchvision 0.28.0 extension.py (`_has_ops`), _meta_registrations.py:163 and :177.
"""

from __future__ import annotations

import sys

# importlib.machinery has them from here, and is 0.5 ms of files that no interpreter has loaded yet.
from _frozen_importlib_external import PathFinder, SourceFileLoader

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost every Python 17 ms
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

MODULE = "torchvision.extension"
OPERATORS = ("nms", "qnms")
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class _Finder:
    """A meta path finder for one module."""

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != MODULE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin)
        return spec


class _Loader(SourceFileLoader):
    """Loads torchvision.extension, then declares the operators that are missing."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        import torch

        if torch.version.cuda is None and not module._has_ops():
            for name in OPERATORS:
                torch.library.define(f"torchvision::{name}", SCHEMA)


if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
    sys.meta_path.insert(0, _Finder())  # no class of importlib: see above
