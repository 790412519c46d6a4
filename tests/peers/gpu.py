"""Times PyTorch's operations on a GPU, and lgreco's program in the same run.

There are two parts. All times are the shortest of several runs:
* the published method's whole table for a transformer with GPT-2's shapes: one simulation per layer and option;
* the PyTorch operations that are closest to `lgreco-cuda/examples/on_device`, on as many values: `torch.topk`, a
  bucketed quantiser of elementwise operations, matrix products, QR, and the step of `powerSGD_hook` in a group of one
  process.

With `--ours PROGRAM`, the times of that program follow. PROGRAM is the `on_device` that cargo has built. `--device cpu`
with few values only tries out this file; its times mean nothing."""

import argparse
import os
import subprocess
import time

import torch

import published

BLOCK = [(2304, 768), (768, 768), (3072, 768), (768, 3072)]
SHAPES = [(50257, 768), (1024, 768)] + 37 * BLOCK
OPTIONS = {
    "qsgd": [("qsgd", bits) for bits in range(2, 9)],
    "topk": [("topk", permille / 1000) for permille in range(1, 101)],
    "powersgd": [("powersgd", rank) for rank in (1, 2, 4, 8, 16, 32, 64)],
}
COLUMNS = 4096  # as in `on_device`


def synchronise(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


runs = 6  # as in `on_device`


def least(device, call):
    """Times `call` in seconds, after an untimed call, because PyTorch's first calls with a new shape are slow."""
    call()
    times = []
    for _ in range(runs if device.type == "cuda" else 1):
        synchronise(device)
        start = time.perf_counter()
        call()
        synchronise(device)
        times.append(time.perf_counter() - start)
    return min(times)


def tables(device, layers):
    gradients = [torch.randn(shape, device=device) for shape in SHAPES[len(SHAPES) - layers :]]
    print(f"tables of {len(gradients)} layers, one simulation per layer and option")
    for method, options in OPTIONS.items():
        # These times include waiting for the device, because every entry calls `.item()`.
        seconds = least(device, lambda: published.table(gradients, len(gradients) * [options]))
        print(f"{method}: table of {len(gradients)} × {len(options)}: {1e3 * seconds:.2f} ms", flush=True)


def quantised(flat, bits):
    """Returns scales, and codes of one byte each. lgreco also packs the codes."""
    levels = 2 ** (bits - 1) - 1
    padded = torch.nn.functional.pad(flat, (0, -flat.numel() % published.BUCKET)).view(-1, published.BUCKET)
    scales = padded.abs().amax(dim=1, keepdim=True)
    position = padded * torch.where(scales > 0, levels / scales, 0)
    return scales, torch.floor(position + torch.rand_like(position)).to(torch.int8)


def operations(device, values):
    matrix = torch.rand(max(values // COLUMNS, 1), COLUMNS, device=device).mul_(2).sub_(1).pow_(3)
    flat, other = matrix.view(-1), torch.empty_like(matrix)
    keep = max(flat.numel() // 100, 1)
    copy = least(device, lambda: other.copy_(matrix))
    bandwidth = 2 * 4 * flat.numel() / copy
    print(f"\n{flat.numel()} f32 values; a copy of them moves {bandwidth / 1e9:.1f} GB/s")
    scales, codes = quantised(flat, 4)
    magnitudes = flat.abs().topk(keep, sorted=False)
    q = torch.randn(COLUMNS, 4, device=device)

    def encode_topk():
        positions = torch.topk(flat.abs(), keep, sorted=False).indices
        return flat[positions], positions

    def encode_powersgd():
        p = torch.linalg.qr(matrix @ q).Q
        return p, matrix.T @ p

    p, factor = encode_powersgd()
    for name, call in {
        "encode QSGD, 4 bits": lambda: quantised(flat, 4),
        "decode QSGD, 4 bits": lambda: codes * (scales / 7),
        "encode TopK, 1 %": encode_topk,
        "decode TopK, 1 %": lambda: torch.zeros_like(flat).index_copy_(0, magnitudes.indices, magnitudes.values),
        "encode PowerSGD, rank 4": encode_powersgd,
        "decode PowerSGD, rank 4": lambda: p @ factor.T,
        "row of QSGD, 7 widths": lambda: published.table([matrix], [OPTIONS["qsgd"]]),
        "row of TopK, 100 densities": lambda: published.table([matrix], [OPTIONS["topk"]]),
        "row of PowerSGD, ranks 1 to 64": lambda: published.table([matrix], [OPTIONS["powersgd"]]),
    }.items():
        seconds = least(device, call)
        of_copy = 100 * 4 * flat.numel() / seconds / bandwidth
        print(f"{name:<40} {1e3 * seconds:>9.3f} ms {of_copy:>7.0f} % of copy", flush=True)
    hook(device, flat)


def hook(device, flat):
    """Times a step of PyTorch's hook: rank 4, error feedback, warm start. With one rank, all-reduces are copies."""
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    name = "powerSGD_hook, rank 4"
    if not dist.is_available():
        print(f"{name}: this PyTorch has no torch.distributed")
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    model = torch.nn.Linear(COLUMNS, flat.numel() // COLUMNS, bias=False, device=device)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1 << 20)
    settings = {"matrix_approximation_rank": 4, "start_powerSGD_iter": 2}
    state = powerSGD_hook.PowerSGDState(process_group=None, **settings)
    wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    inputs = torch.rand(1, COLUMNS, device=device)

    def step(module):
        with torch.enable_grad():
            module(inputs).sum().backward()

    for _ in range(3):  # the hook compresses from its third step on
        step(wrapped)
    seconds, without = least(device, lambda: step(wrapped)), least(device, lambda: step(model))
    print(f"{name:<40} {1e3 * (seconds - without):>9.3f} ms, a backward pass without it taken off")
    dist.destroy_process_group()


def main():
    global runs
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=len(SHAPES), help="only the last of the layers, for a trial")
    parser.add_argument("--values", type=int, default=1 << 26, help="of the single operations")
    parser.add_argument("--runs", type=int, default=runs, help="of which the fastest counts")
    parser.add_argument("--ours", help="lgreco's program on_device, to run on as many values")
    arguments = parser.parse_args()
    runs = arguments.runs
    device = torch.device(arguments.device)
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    print(f"PyTorch {torch.__version__} on {name}")
    tables(device, arguments.layers)
    operations(device, arguments.values)
    if arguments.ours:
        print("\nlgreco:", flush=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        environment = os.environ | {"LGRECO_BENCH_ELEMENTS": str(arguments.values)}
        subprocess.run([arguments.ours, "copy", "payloads", "rows"], check=True, env=environment)


if __name__ == "__main__":
    main()
