"""Speed of the matrix products of linear layers in PyTorch: --layers "m,n,k m,n,k …" for m tokens, n outputs, k inputs.

Each layer has three products (forward and both gradients), in the memory layout that autograd uses. The same matrices are
used repeatedly, so they stay in the cache if they fit. Prints one JSON line with the GFLOP/s of each.
"""

import json
import time
from statistics import median

import torch

import qwen
from workloads import arguments

#: Minimum duration of a block of products in seconds, long compared with the clock's resolution.
BLOCK = 0.05
given = arguments("--layers")
dtype = qwen.dtype(given.dtype)


def matrix(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns).to(dtype)


def seconds_of(left: torch.Tensor, right: torch.Tensor) -> float:
    out = left @ right
    start = time.perf_counter()
    torch.mm(left, right, out=out)
    repeats = max(1, round(BLOCK / max(time.perf_counter() - start, 1e-6)))
    blocks = []
    for _ in range(given.steps):
        start = time.perf_counter()
        for _ in range(repeats):
            torch.mm(left, right, out=out)
        blocks.append((time.perf_counter() - start) / repeats)
    return median(blocks)


@torch.inference_mode()
def products() -> list[dict]:
    found = []
    for layer in given.layers.split():
        m, n, k = map(int, layer.split(","))
        x, w, dy = matrix(m, k), matrix(n, k), matrix(m, n)
        pairs = {"forward": (x, w.t()), "backward_input": (dy, w), "backward_weight": (dy.t(), x)}
        for name, (left, right) in pairs.items():
            found.append({"name": name, "m": m, "n": n, "k": k, "gflops": 2e-9 * m * n * k / seconds_of(left, right)})
    return found


print(json.dumps({"kernels": products(), "versions": qwen.VERSIONS}))
