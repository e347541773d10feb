"""How every chapter begins: float64, one thread, one device, one style; and how it draws.

A test changes all that is drawn: so one sees whether a notebook's digits depend on rounding.
"""

import functools
import os
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

PERTURB = "NORMBOOK_PERTURB"
# What draws: functions of torch, and methods of its tensors, by which initializers draw too.
FUNCTIONS = ("randn", "rand", "randn_like", "rand_like", "normal")
METHODS = ("normal_", "uniform_")

changed = 0  # tensors that were changed since `begin`


class UnperturbedError(RuntimeError):
    """A page trains from weights and data of which nothing was changed: its test tests nothing."""


def begin() -> None:
    """Compute in float64 on one thread, so that the printed digits are the same on every machine.

    Figures are drawn in the book's style from now on. `NORMBOOK_THREADS` sets another number of
    threads, for the tests that compare them. `NORMBOOK_PERTURB` changes whatever is drawn by torch
    by that relative amount: so one sees whether a notebook's printed digits depend on rounding.
    """
    from normbook.lab.figures import use_style  # pyplot: slow, and not everyone draws

    global changed
    threads = os.environ.get("NORMBOOK_THREADS", "1")
    if not threads.isdigit() or int(threads) < 1:
        raise ValueError(f"NORMBOOK_THREADS must be a whole number from 1, got {threads!r}")
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(int(threads))
    use_style()
    changed = 0
    if amount():
        perturb_draws()


def pick_device() -> torch.device:
    """Pick the device of all training and probing: CUDA when there is one, else the CPU.

    The environment variable `NORMBOOK_DEVICE` ("cpu", "cuda" or "cuda:N") overrules the choice.
    The book computes in float64, so only devices that have it are accepted.

    Raises:
        ValueError: `NORMBOOK_DEVICE` names no such device, or one that this machine lacks.
    """
    wanted = os.environ.get("NORMBOOK_DEVICE", "").strip()
    if not wanted:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = wanted.partition(":")
    if kind not in ("cpu", "cuda") or (":" in wanted and not (kind == "cuda" and index.isdigit())):
        raise ValueError(f"NORMBOOK_DEVICE must be 'cpu', 'cuda' or 'cuda:N', got {wanted!r}")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"NORMBOOK_DEVICE must be on this machine, which has {torch.cuda.device_count()} "
            f"CUDA devices, got {wanted!r}"
        )
    return torch.device(wanted)


def draw(seed: int, *shape: int) -> Tensor:
    """Draw standard normal numbers of this shape, in float64 on the CPU, from `seed` alone."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


# --- how a test changes what is drawn ---


def amount() -> float:
    """Return the relative change that `NORMBOOK_PERTURB` asks for, 0 without it."""
    value = os.environ.get(PERTURB) or "0"
    try:
        relative = float(value)
    except ValueError:
        relative = -1.0
    if not 0 <= relative < 1:
        raise ValueError(f"{PERTURB} must be a number in [0, 1), got {value!r}")
    return relative


def perturb_draws() -> None:
    """Let every draw of torch give values changed by `amount()`, for the rest of this process."""
    for owner, names in ((torch, FUNCTIONS), (Tensor, METHODS)):
        for name in names:
            draw = getattr(owner, name)
            if not hasattr(draw, "__wrapped__"):  # begun twice
                setattr(owner, name, perturbed(draw))
    register_optimizer_step_pre_hook(check_perturbed)


def perturbed(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return `draw` with its values changed; float32 stays, where 1e-12 is nothing."""

    @functools.wraps(draw)
    def changed_draw(*arguments, **options) -> Tensor:
        drawn = draw(*arguments, **options)
        exact = drawn.dtype == torch.float64 and not torch.compiler.is_compiling()
        return change_(drawn) if exact else drawn

    return changed_draw


def change_(values: Tensor) -> Tensor:
    """Multiply values in place by 1 + `amount()` · z, with |z| ≤ √2, and count it.

    The same places get the same z each time, so that what was drawn alike stays alike.
    """
    global changed
    changed += 1
    places = torch.arange(values.numel(), dtype=torch.float64, device=values.device)
    noise = 2**0.5 * torch.sin(places**2 + 1)  # not random, so it can stand in a vmap
    with torch.no_grad():
        return values.mul_(1 + amount() * noise.reshape(values.shape).to(values))


def change_weights_(weights: Iterable[Tensor]) -> None:
    """Change all weights of a model in place, gains and biases too, if a test asks for it."""
    if amount():
        for weight in weights:
            change_(weight)


def check_perturbed(*unused) -> None:
    """Raise `UnperturbedError` where a training begins, and all should be changed, and nothing is.

    It also stands before the steps of PyTorch's own optimizers, once `perturb_draws` was called.
    """
    if amount() and not changed:
        raise UnperturbedError(
            f"{PERTURB} is set, and nothing that is trained here was drawn since begin(): "
            "draw weights or data after it"
        )
