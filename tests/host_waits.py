"""Finds the operations for which the host would wait for a GPU: those that read a number from a tensor."""

import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

OPERATIONS = {"aten::nonzero", "aten::_local_scalar_dense", "aten::item", "aten::masked_select", "aten::is_nonzero"}
#: Methods that reach the host without an operation of their own on a CPU.
METHODS = ("item", "tolist", "numpy", "nonzero", "cpu", "__bool__", "__float__", "__int__", "__index__")


class HostWaits(TorchDispatchMode):
    """Inside the context, notes each such operation with the module that calls it, in ``found``."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.patch = pytest.MonkeyPatch()

    @property
    def names(self) -> list[str]:
        """The operations, whoever calls them."""
        return [name for name, _ in self.found]

    @property
    def ours(self) -> list[tuple[str, str]]:
        """The calls of tensor methods by our code.

        Transformers' code asks whether a batch is padded, and some of torch's operations check their input on CPU.
        """
        calls = [(name, caller) for name, caller in self.found if name.startswith("Tensor.")]
        return [(name, caller) for name, caller in calls if not caller.startswith("transformers.")]

    def __enter__(self) -> "HostWaits":
        for name in METHODS:
            self.patch.setattr(torch.Tensor, name, self._noting(name, getattr(torch.Tensor, name)))
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.patch.undo()
        super().__exit__(kind, error, trace)

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), kwargs: Any = None) -> Any:
        name = operation.name().split(".")[0]
        indices = arguments[1] if name in ("aten::index", "aten::index_put_") else ()
        if name in OPERATIONS or any(index is not None and index.dtype == torch.bool for index in indices):
            self._note(name)
        return operation(*arguments, **(kwargs or {}))

    def _noting(self, name: str, original: Any) -> Any:
        def method(tensor: torch.Tensor, *arguments: Any, **kwargs: Any) -> Any:
            if tensor.dtype != torch.uint8:  # the state of a generator, which is in the host's memory
                self._note(f"Tensor.{name}")
            return original(tensor, *arguments, **kwargs)

        return method

    def _note(self, name: str) -> None:
        frame: Any = sys._getframe(1)
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            if module.split(".")[0] != "torch" and Path(frame.f_code.co_filename).name != Path(__file__).name:
                break
            frame = frame.f_back
        self.found.append((name, module))
