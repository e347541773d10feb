"""Batch normalization across processes: two real ones, each with a share of the batch.

PyTorch's own `nn.SyncBatchNorm` needs a GPU. Here the statistics and the sums of the backward pass
go through `torch.distributed` on the CPU, by hand, so that every byte is seen.

`run` starts the processes. They run this file as a program, and it needs PyTorch alone: so they
start fast, whatever the notebook has imported, and without running the notebook's cells again.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

LOOPBACKS = ("lo", "lo0")  # Linux, macOS
CHECK_S = 0.02  # between two looks at the processes
SHARE = "input", "gradient", "weight", "bias", "synchronized", "eps"  # for one process


class SharedBatch(NamedTuple):
    """One forward and backward pass of BatchNorm, shared by the processes.

    Each process holds its own of `inputs` [N_rank, C, ...], and of `gradients`, which are those of
    the loss by its output, shaped alike. Gain `weight` and shift `bias` [C] are the same in all.
    If not `synchronized`, each process uses its own statistics.
    """

    inputs: Sequence[Tensor]
    gradients: Sequence[Tensor]
    weight: Tensor
    bias: Tensor
    synchronized: bool = True
    eps: float = 1e-5


class Part(NamedTuple):
    """What one process had at the end: output and grad_input [N_rank, C, ...], others [C].

    The gradients of gain and shift are from its own share: the full ones are the sums. `mean` is
    what it subtracted, `variance` (biased) what it divided by. It handed `sent_forward` and
    `sent_backward` bytes to collectives, and had to wait for the other `collectives` times.
    """

    output: Tensor
    grad_input: Tensor
    grad_weight: Tensor
    grad_bias: Tensor
    mean: Tensor
    variance: Tensor
    sent_forward: int
    sent_backward: int
    collectives: int


# --- The norm ---


def combine(counts: Tensor, means: Tensor, squares: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Merge the statistics of K parts into those of the whole.

    $$n = \sum_k n_k, \qquad \mu = \sum_k \frac{n_k}{n}\,\mu_k, \qquad
      S = \sum_k \big(S_k + n_k (\mu_k - \mu)^2\big)$$

    with $S_k$ the sum of squares around the part's own mean.

    Shapes: counts [K], means and squares [K, C]; returns a count without axes, then [C] and [C].

    Source: Chan, Golub & LeVeque 1982 (COMPSTAT), for two parts.
    """
    counts = counts.unsqueeze(1)
    total = counts.sum()
    mean = (counts / total * means).sum(0)
    square = (squares + counts * (means - mean).square()).sum(0)
    return total, mean, square


class Wire:
    """The collectives that a process takes part in, and the bytes that it hands to them.

    The bytes are the payload: what the process contributes. How a backend routes it, and what it
    adds, is not in there. `alone` cuts it: the process keeps to its own share, and sends nothing.
    """

    def __init__(self, alone: bool = False) -> None:
        self.alone, self.sent, self.collectives = alone, 0, 0

    def all_gather(self, values: Tensor) -> Tensor:
        """Return what every process gave, [processes, *values.shape]."""
        if self.alone:
            return values.unsqueeze(0)
        self._count(values)
        gathered = [torch.empty_like(values) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, values)
        return torch.stack(gathered)

    def all_reduce(self, values: Tensor) -> Tensor:
        """Return the sum of what every process gave, shaped as `values`."""
        if self.alone:
            return values
        self._count(values)
        total = values.clone()
        dist.all_reduce(total)
        return total

    def _count(self, values: Tensor) -> None:
        self.sent += values.numel() * values.element_size()
        self.collectives += 1


class SyncedNorm(torch.autograd.Function):
    """Batch normalization with statistics over all processes, forward and backward."""

    @staticmethod
    def forward(ctx, input, weight, bias, eps, wire):
        """Return the output, and the mean and biased variance over all processes."""
        axes, channels = _axes(input), input.shape[1]
        mean = input.mean(axes)
        square = (input - _meet(mean, input)).square().sum(axes)
        count = mean.new_tensor([input.numel() / channels])
        shares = wire.all_gather(torch.cat([count, mean, square]))
        total, mean, square = combine(shares[:, 0], *shares[:, 1:].split(channels, dim=1))
        variance = square / total
        inverse = torch.rsqrt(variance + eps)
        normalized = (input - _meet(mean, input)) * _meet(inverse, input)
        ctx.save_for_backward(normalized, weight, inverse, total)
        ctx.wire = wire
        ctx.mark_non_differentiable(mean, variance)
        output = normalized * _meet(weight, input) + _meet(bias, input)
        return output, mean, variance

    @staticmethod
    def backward(ctx, grad, _mean, _variance):
        """Return the gradients; those of weight and bias are from this process's share."""
        normalized, weight, inverse, total = ctx.saved_tensors
        axes = _axes(grad)
        own = torch.cat([grad.sum(axes), (grad * normalized).sum(axes)])
        grad_bias, grad_weight = own.chunk(2)
        shift, slope = (ctx.wire.all_reduce(own) / total).chunk(2)
        inner = grad - _meet(shift, grad) - normalized * _meet(slope, grad)
        return _meet(weight * inverse, grad) * inner, grad_weight, grad_bias, None, None


def _axes(input: Tensor) -> tuple[int, ...]:
    """Return the axes of the statistics: all but the channels."""
    return (0, *range(2, input.dim()))


def _meet(value: Tensor, input: Tensor) -> Tensor:
    """View a [C] tensor so that it meets axis 1 of `input`."""
    return value.reshape(1, -1, *[1] * (input.dim() - 2))


# --- The processes ---


def run(batches: Sequence[SharedBatch], timeout: float = 120.0) -> list[list[Part]]:
    """Do every batch in as many processes as it has inputs; return the parts, [batch][process].

    All batches run in one start of the processes, which costs an import of PyTorch each.

    Raises: ValueError when there is no batch, or they differ in their number of processes, or hold
    tensors that do not fit; RuntimeError when PyTorch lacks gloo, or a process fails or takes over
    `timeout` seconds.
    """
    processes = _require_batches(batches)
    if not (dist.is_available() and dist.is_gloo_available()):
        raise RuntimeError("this PyTorch must have torch.distributed with gloo, and lacks it")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rank in range(processes):
            torch.save([_share(batch, rank) for batch in batches], folder / f"share-{rank}.pt")
        started = [_start(folder, rank, processes, timeout) for rank in range(processes)]
        try:
            _wait(started, folder, timeout)
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
                process.wait()
        done = [torch.load(folder / f"part-{rank}.pt") for rank in range(processes)]
    return [[Part(**part) for part in parts] for parts in zip(*done, strict=True)]


def _require_batches(batches: Sequence[SharedBatch]) -> int:
    """Return the number of processes; raise unless all batches fit it, and their tensors fit."""
    counts = {len(batch.inputs) for batch in batches} | {len(batch.gradients) for batch in batches}
    if len(counts) != 1 or 0 in counts:
        raise ValueError(f"batches must all have the same number of shares, got {sorted(counts)}")
    for batch in batches:
        for input, gradient in zip(batch.inputs, batch.gradients, strict=True):
            if input.dim() < 2 or not input.numel() or input.shape != gradient.shape:
                raise ValueError(
                    "inputs must be [N, C, ...], not empty, and gradients shaped alike, got "
                    f"{tuple(input.shape)} and {tuple(gradient.shape)}"
                )
            for name in ("weight", "bias"):
                shape = tuple(getattr(batch, name).shape)
                if shape != (input.shape[1],):
                    raise ValueError(f"{name} must have shape ({input.shape[1]},), got {shape}")
    return counts.pop()


def _share(batch: SharedBatch, rank: int) -> dict:
    """Return what one process gets of a batch: copies, or a slice would bring the whole."""
    tensors = batch.inputs[rank], batch.gradients[rank], batch.weight, batch.bias
    copies = [tensor.detach().cpu().clone() for tensor in tensors]
    return dict(zip(SHARE, [*copies, batch.synchronized, batch.eps], strict=True))


def _start(folder: Path, rank: int, processes: int, timeout: float) -> subprocess.Popen:
    """Start one process on one thread, whose sockets stay on this machine."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for _, name in socket.if_nameindex():
        if name in LOOPBACKS:
            environment["GLOO_SOCKET_IFNAME"] = name
    # -P: this file's neighbours must not shadow the standard library
    command = [sys.executable, "-P", __file__, str(folder), str(rank), str(processes), str(timeout)]
    with open(folder / f"errors-{rank}.txt", "wb") as errors:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
        )


def _wait(started: Sequence[subprocess.Popen], folder: Path, timeout: float) -> None:
    """Wait until all processes are done; raise as soon as one fails, or when time is up."""
    deadline = time.monotonic() + timeout
    while any(process.poll() is None for process in started):
        if any(process.poll() for process in started):
            break
        if time.monotonic() > deadline:
            raise RuntimeError(f"the processes must be done in {timeout:g} s, and were not")
        time.sleep(CHECK_S)
    for rank, process in enumerate(started):
        if process.poll():
            errors = (folder / f"errors-{rank}.txt").read_text(errors="replace").strip()
            raise RuntimeError(f"process {rank} failed: {errors[-2000:]}")


def norm_share(share: dict) -> dict:
    """Do one process's share of a batch, as the others do theirs; return a `Part` as a dict."""
    wire = Wire(alone=not share["synchronized"])
    leaves = [share[name].requires_grad_() for name in ("input", "weight", "bias")]
    output, mean, variance = SyncedNorm.apply(*leaves, share["eps"], wire)
    forward = wire.sent
    gradients = torch.autograd.grad(output, leaves, share["gradient"])
    sent = forward, wire.sent - forward
    return Part(output.detach(), *gradients, mean, variance, *sent, wire.collectives)._asdict()


def main(folder: Path, rank: int, processes: int, timeout: float) -> None:
    """Meet the others, do this process's share of all batches, and leave the parts in a file."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(folder / "meeting-point"), processes),
        **{"rank": rank, "world_size": processes, "timeout": timedelta(seconds=timeout)},
    )
    parts = [norm_share(share) for share in torch.load(folder / f"share-{rank}.pt")]
    torch.save(parts, folder / f"part-{rank}.pt")
    dist.barrier()  # the store's file must outlive the slower process
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
