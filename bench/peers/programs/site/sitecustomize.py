"""Lets PyPI's torchvision, which is made for CUDA, be imported beside PyTorch for CPUs. Python runs this at its start.

torchvision describes two of its compiled operators without asking whether they are there; nothing here calls them.
vLLM looks at models in processes that it starts itself, so they have to be declared in every process.
"""

import sys
from importlib.abc import MetaPathFinder
from typing import Any


class _Operators(MetaPathFinder):
    """Finds no module; declares the operators before torchvision is looked for elsewhere."""

    def __init__(self) -> None:
        self._library: Any = None

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "torchvision" and self._library is None:
            import torch

            self._library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                self._library.define(
                    f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                )


sys.meta_path.insert(0, _Operators())
