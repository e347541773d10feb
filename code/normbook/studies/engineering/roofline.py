"""What bounds a function, memory or arithmetic: operations counted, clocks read side by side.

Counts do not depend on the machine. Clocks do: their cells are not compared with a recording.
"""

import ctypes
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from normbook.engine.checks import require_size
from normbook.lab.dispatch import Operator

# Operations a value that goes in (reductions) or comes out (all others).
OPERATIONS = {
    "var_mean": 3,
    **dict.fromkeys(("addcmul", "linalg_vector_norm"), 2),
    **dict.fromkeys(("add", "sub", "mul", "div", "rsqrt", "pow", "square", "tanh"), 1),
    **dict.fromkeys(("add_", "mul_", "rsub", "mean", "sum"), 1),
    **dict.fromkeys(("copy_", "_to_copy", "clone"), 0),
}
KERNEL = re.compile(r"^\w+_fused_\w+ = async_compile", re.MULTILINE)


def operations(operators: Sequence[Operator], bytes_each: int = 8) -> int:
    """Count additions, multiplications and roots of elementwise operators and reductions.

    `bytes_each` is the size of one value. Raises: ValueError on an operator it does not know.
    """
    total = 0
    for operator in operators:
        if operator.name not in OPERATIONS:
            raise ValueError(f"operators must be elementwise or sums, got {operator.name!r}")
        values = (operator.read if operator.reduction else operator.written) // bytes_each
        total += OPERATIONS[operator.name] * values
    return total


def fastest(calls: dict[Any, Callable[[], Any]], repeats: int = 30) -> dict[Any, float]:
    """Time each call `repeats` times, interleaved, and return the shortest, in seconds, by name.

    What else runs on a machine only makes a call slower, so the shortest is the most its own. The
    first two rounds are left out: they warm the caches. Raises: ValueError without repeats.
    """
    require_size("repeats", repeats)
    seconds: dict[Any, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 2):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: min(values[2:]) for name, values in seconds.items()}


def keep_memory() -> bool:
    """Ask the C library to keep what is freed, and say whether it will (glibc does, others do not).

    By default it hands large tensors back to the system, and the next one costs a page fault every
    4 KB, which can take longer than a norm. It holds until the process ends.
    """
    max_mapped, trim_threshold = -4, -1  # names of the options in malloc.h
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(set_option(max_mapped, 0) and set_option(trim_threshold, 2**31 - 1))


def machine(side: int = 512, numbers: int = 2**22) -> tuple[float, float]:
    """Measure this machine in float32: operations and bytes a second, by a product and a copy.

    The product is side × side. The copy reads and writes `numbers` values, 16 MB as given; part may
    fit a cache.
    """
    left, right = torch.rand(2, side, side, dtype=torch.float32)
    source = torch.rand(numbers, dtype=torch.float32)
    target, product = torch.empty_like(source), torch.empty_like(left)
    multiply, copy = lambda: torch.mm(left, right, out=product), lambda: target.copy_(source)
    times = fastest({"multiply": multiply, "copy": copy})
    return 2 * side**3 / times["multiply"], 8 * numbers / times["copy"]


def compiled(
    function: Callable[..., Tensor], *inputs: Tensor
) -> tuple[Callable[..., Tensor] | None, int]:
    """Compile a function for these inputs; return it and how many fused kernels it launches.

    Where that fails, most often for want of a C++ compiler, say so in one line and return None, 0.
    """
    try:
        from torch._inductor.utils import run_and_get_code

        fast = torch.compile(function, dynamic=False)
        _, sources = run_and_get_code(fast, *inputs)
    except Exception as error:  # compilers fail in many ways, and the page goes on without one
        print(f"not compiled ({type(error).__name__}): torch.compile needs a C++ compiler")
        return None, 0
    return fast, sum(len(KERNEL.findall(source)) for source in sources)
