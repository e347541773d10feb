"""How every chapter begins: in float64, on one thread."""

import os

import torch


def begin() -> None:
    """Compute in float64 on one thread, so that the printed digits are the same on every machine.

    `NORMBOOK_THREADS` sets another number of threads, for the tests that compare them.
    """
    threads = os.environ.get("NORMBOOK_THREADS", "1")
    if not threads.isdigit() or int(threads) < 1:
        raise ValueError(f"NORMBOOK_THREADS must be a whole number from 1, got {threads!r}")
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(int(threads))
