"""What a layer costs: `make bench`. Ratios to PyTorch's own layer, and share of a same-size copy.

Eager, compiled and PyTorch's own are timed in turn, so that a busy machine slows all of them alike,
and the medians are compared. `make bench` sets two variables of glibc, so that large results come
from memory that the allocator keeps: without them page faults are measured instead of layers.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import normalization as nz

ROOT = Path(__file__).resolve().parents[1]
SHAPES = ((64, 1024), (4096, 1024), (4096, 4096))
DTYPES = (torch.float32, torch.bfloat16)
# What the engine must reach on two threads at the two large shapes, float32.
REACH = {
    ("layer_norm", "eager", "forward"): 4.0,
    ("rms_norm", "eager", "forward"): 1.0,
    ("layer_norm", "compiled", "forward"): 1.1,
    ("rms_norm", "compiled", "forward"): 0.5,
    ("rms_norm", "compiled", "both"): 0.5,
}


def layers(width: int, dtype: torch.dtype) -> dict[str, tuple]:
    """Return the engine's and PyTorch's layer by name, each a function of [rows, width]."""
    gain = torch.ones(width, dtype=dtype, requires_grad=True)
    shift = torch.zeros(width, dtype=dtype, requires_grad=True)
    arguments = {
        "layer_norm": ((width,), gain, shift),
        "rms_norm": ((width,), gain, 1e-6),
        "batch_norm": (None, None, gain, shift, True),
        "group_norm": (width // 32, gain, shift),
    }
    return {
        name: tuple(lambda x, f=f, a=a: f(x, *a) for f in (vars(nz)[name], vars(F)[name]))
        for name, a in arguments.items()
    }


def forward(layer, x: torch.Tensor) -> None:
    """Run a layer without recording gradients."""
    with torch.no_grad():
        layer(x)


def both(layer, x: torch.Tensor) -> None:
    """Run a layer forward and backward."""
    x.grad = None
    layer(x).backward(x.detach())


def medians(tasks: dict, rounds: int) -> dict[str, float]:
    """Time every task once a round, in turn, and return each one's median in seconds."""
    times = {name: [] for name in tasks}
    for task in tasks.values():
        task()
    for _ in range(rounds):
        for name, task in tasks.items():
            begin = time.perf_counter()
            task()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def measure(threads: int, shape: tuple[int, int], dtype: torch.dtype, rounds: int) -> list[dict]:
    """Measure every layer at one shape, dtype and number of threads."""
    torch.set_num_threads(threads)
    x = torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_()
    target = torch.empty_like(x.detach())
    rows = []
    for name, (ours, native) in layers(shape[1], dtype).items():
        torch._dynamo.reset()
        variants = {"eager": ours, "compiled": torch.compile(ours), "native": native}
        for way in (forward, both):
            tasks = {kind: lambda f=f, way=way: way(f, x) for kind, f in variants.items()}
            tasks["copy"] = lambda: target.copy_(x.detach())
            times = medians(tasks, rounds)
            about = {"layer": name, "way": way.__name__, "shape": list(shape), "threads": threads}
            about["dtype"] = str(dtype).removeprefix("torch.")
            for kind in ("eager", "compiled"):
                ratio, share = times[kind] / times["native"], times["copy"] / times[kind]
                rows.append({**about, "kind": kind, "ratio": ratio, "share_of_copy": share})
    return rows


def main() -> int:
    """Measure, print a table, write `_build/bench.json`, and say which goals are missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="timings of each variant")
    options = parser.parse_args()
    cases = itertools.product((1, 2), SHAPES, DTYPES)
    rows = [row for case in cases for row in measure(*case, options.rounds)]
    (ROOT / "_build").mkdir(exist_ok=True)
    (ROOT / "_build/bench.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{'layer':11} {'kind':9} {'way':8} {'shape':13} {'dtype':9} threads", end="  ")
    print("÷ PyTorch  share of copy")
    missed = []
    for row in rows:
        shape = "×".join(map(str, row["shape"]))
        print(
            f"{row['layer']:11} {row['kind']:9} {row['way']:8} {shape:13} {row['dtype']:9} "
            f"{row['threads']:7} {row['ratio']:10.2f} {row['share_of_copy']:14.0%}"
        )
        goal = REACH.get((row["layer"], row["kind"], row["way"]), float("inf"))
        large = row["threads"] == 2 and row["shape"][0] > 64 and row["dtype"] == "float32"
        if large and row["ratio"] > goal:
            missed.append(f"{row['layer']} {row['kind']} {row['way']} {shape}: above {goal}")
    print("\n".join(["", *missed]) if missed else "\nall goals reached")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
