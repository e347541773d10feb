"""Where the book computes: on a GPU if there is one, with the same results as on the CPU."""

import os

import torch


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
