"""The method of the L-GreCo paper, written from its published description.

Simulates every option in PyTorch, then runs Algorithm 1 in NumPy.

Options are tuples: ("topk", density), ("qsgd", bits), ("powersgd", rank), ("dense", None).
"""

import numpy as np
import torch

BUCKET = 512
POWER_ITERATIONS = 5
LEVELS = 10_000


def kept(density, elements):
    return max(1, int(density * elements + 0.5))


def topk(flat, density):
    _, indices = torch.topk(flat.abs(), kept(density, flat.numel()), sorted=False)
    decompressed = torch.zeros_like(flat)
    decompressed[indices] = flat[indices]
    return decompressed


def qsgd(flat, bits):
    """QSGD: buckets scaled by their largest magnitude, 2^(bits-1) - 1 levels and a sign, stochastic rounding."""
    levels = 2 ** (bits - 1) - 1
    padded = torch.nn.functional.pad(flat, (0, -flat.numel() % BUCKET)).view(-1, BUCKET)
    norm = padded.abs().amax(dim=1, keepdim=True)
    scaled = padded.abs() * torch.where(norm > 0, levels / norm, 0)
    code = torch.floor(scaled + torch.rand_like(scaled)).clamp_max_(levels)
    return (torch.sign(padded) * code * (norm / levels)).view(-1)[: flat.numel()]


def powersgd(matrix, rank):
    q = torch.randn(matrix.shape[1], rank, device=matrix.device)
    for _ in range(POWER_ITERATIONS):
        p = torch.linalg.qr(matrix @ q).Q
        q = matrix.T @ p
    return p @ q.T


def simulate(gradient, option):
    """The L2 norm of the error of compressing `gradient` with `option`."""
    method, parameter = option
    if method == "dense":
        return 0.0
    if method == "powersgd":
        matrix = gradient.view(gradient.shape[0], -1)
        return torch.linalg.norm(matrix - powersgd(matrix, parameter)).item()
    flat = gradient.view(-1)
    decompressed = topk(flat, parameter) if method == "topk" else qsgd(flat, parameter)
    return torch.linalg.norm(flat - decompressed).item()


def table(gradients, options):
    """The error table: one row of errors per layer."""
    return [[simulate(gradient, option) for option in row] for gradient, row in zip(gradients, options)]


def algorithm_1(sizes, errors, budget, levels=LEVELS):
    """Chooses one option per layer by dynamic programming.

    The budget is divided into `levels` cells, and errors are rounded up. Returns `None` if rounding leaves no plan.
    """
    cell = budget / levels
    best = np.full(levels + 1, np.inf)
    best[0] = 0.0
    picks = []
    for row_sizes, row_errors in zip(sizes, errors):
        costs = [int(np.ceil(error / cell)) if cell > 0 else (0 if error == 0 else levels + 1) for error in row_errors]
        row = np.full(levels + 1, np.inf)
        pick = np.zeros(levels + 1, dtype=np.int32)
        for option, (size, cost) in enumerate(zip(row_sizes, costs)):
            if cost > levels:
                continue
            candidate = best[: levels + 1 - cost] + size
            smaller = candidate < row[cost:]
            row[cost:][smaller] = candidate[smaller]
            pick[cost:][smaller] = option
        best = row
        picks.append((pick, costs))
    at = int(np.argmin(best))
    if not np.isfinite(best[at]):
        return None
    plan = []
    for pick, costs in reversed(picks):
        option = int(pick[at])
        plan.append(option)
        at -= costs[option]
    return plan[::-1]
