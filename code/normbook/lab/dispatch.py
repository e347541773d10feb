"""What a function asks of the machine: its operators, its reductions, and the bytes they move.

Every operator that PyTorch runs passes through its dispatcher. `record` stands there and writes
them down, so that counts do not depend on a clock, a load or a machine.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from normbook.engine.checks import require_callable

# Fused operators that take statistics inside: their outputs do not show it.
FUSED_NORMS = (
    *("native_layer_norm", "native_group_norm", "native_batch_norm"),
    *("_native_batch_norm_legit", "_fused_rms_norm"),
)
ALLOCATIONS = ("empty", "empty_like", "empty_strided", "new_empty")  # move nothing


class Operator(NamedTuple):
    """One operator that ran.

    Attributes:
        name: as the dispatcher knows it, without overload: "mean", "native_layer_norm".
        reduction: whether some axis of its largest input is missing from every output.
        fused: whether it is a whole norm, which has its reductions inside.
        read: bytes of the tensors that it takes.
        written: bytes of the tensors that it makes or changes.
    """

    name: str
    reduction: bool
    fused: bool
    read: int
    written: int


class Traffic(NamedTuple):
    """The sum over some operators: how many, how many reductions, bytes read and written."""

    operators: int
    reductions: int
    read: int
    written: int


def record(function: Callable[[], Any]) -> list[Operator]:
    """Call `function()` and return its operators in the order in which they ran.

    Views (`reshape`, `detach`, …) and bare allocations move nothing and are left out. A tensor that
    is expanded counts with the elements that exist. What autograd does in a backward pass counts
    too, if the function runs one. The bytes are what the operators are handed; caches may serve
    some of them.

    Raises: TypeError if the function is not callable.
    """
    require_callable("function", function)
    recorder = _Recorder()
    with recorder:
        function()
    return recorder.operators


def traffic(operators: list[Operator]) -> Traffic:
    """Add up operators; a fused norm is one operator, and its inner reductions are not seen."""
    return Traffic(
        len(operators),
        sum(operator.reduction for operator in operators),
        sum(operator.read for operator in operators),
        sum(operator.written for operator in operators),
    )


class _Recorder(TorchDispatchMode):
    """Write down every operator that passes the dispatcher inside the `with`."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Run one operator and note it, unless it only makes views."""
        result = function(*args, **(kwargs or {}))
        inputs, outputs = _tensors((args, kwargs)), _tensors(result)
        name = function.overloadpacket.__name__
        if outputs and name not in ALLOCATIONS and not _only_views(function, outputs, inputs):
            self.operators.append(_operator(name, inputs, outputs))
        return result


def _operator(name: str, inputs: list[Tensor], outputs: list[Tensor]) -> Operator:
    """Describe one call of the operator `name`."""
    fused = name in FUSED_NORMS
    largest = max((_elements(tensor) for tensor in inputs), default=0)
    smaller = max(_elements(tensor) for tensor in outputs) < largest
    return Operator(
        name,
        reduction=smaller and not fused,
        fused=fused,
        read=sum(_bytes(tensor) for tensor in inputs),
        written=sum(_bytes(tensor) for tensor in outputs),
    )


def _only_views(function, outputs: list[Tensor], inputs: list[Tensor]) -> bool:
    """Tell whether every output shares memory with an input that the operator leaves unchanged."""
    if function._schema.is_mutable:
        return False
    known = {tensor.untyped_storage().data_ptr() for tensor in inputs if tensor.numel()}
    return all(tensor.untyped_storage().data_ptr() in known for tensor in outputs)


def _tensors(values: Any) -> list[Tensor]:
    """List the tensors in nested arguments or results."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _elements(tensor: Tensor) -> int:
    """Count the elements in memory: an axis of stride 0 repeats one."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, stride in sizes if stride or size == 0)


def _bytes(tensor: Tensor) -> int:
    """Count the bytes of a tensor's elements in memory."""
    return _elements(tensor) * tensor.element_size()
