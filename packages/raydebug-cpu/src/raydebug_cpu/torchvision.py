"""torchvision beside a torch without CUDA: declares the operators that its library would have brought.

The package index has torchvision for CUDA only. Its `_C.so` is not loaded without CUDA's libraries, and the import
ends: RuntimeError: operator torchvision::nms does not exist. Nothing on the path of a training calls these operators;
without kernels they raise NotImplementedError when called. transformers and vLLM import torchvision in every process,
before any plug-in, so raydebug_cpu.pth imports this module in the Pythons that have torchvision and no packages of
NVIDIA.

Source: torchvision 0.28.0 extension.py (`_has_ops`), _meta_registrations.py:163 and :177.
"""

from __future__ import annotations

from raydebug_cpu.after_import import after_import

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost every Python 17 ms
if TYPE_CHECKING:
    from types import ModuleType

OPERATORS = ("nms", "qnms")
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def declare_operators(extension: ModuleType) -> None:
    """Declare the operators that are missing, where torch has no CUDA."""
    import torch

    if torch.version.cuda is None and not extension._has_ops():
        for name in OPERATORS:
            torch.library.define(f"torchvision::{name}", SCHEMA)


after_import("torchvision.extension", declare_operators)
