"""Times the published method's whole table of a transformer with GPT-2's shapes on a GPU: one PyTorch simulation per
layer and option, the least of several runs. `lgreco-cuda/examples/on_device.rs` times ours of the same shapes."""

import argparse
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

RUNS = 6  # as there

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cuda")
parser.add_argument("--layers", type=int, default=len(SHAPES), help="only the last of the layers, for a trial")
arguments = parser.parse_args()
torch.set_grad_enabled(False)
torch.manual_seed(0)
gradients = [torch.randn(shape, device=arguments.device) for shape in SHAPES[-arguments.layers :]]
print(f"PyTorch {torch.__version__} on {arguments.device}, {len(gradients)} layers")
for method, options in OPTIONS.items():
    different = list({gradient.shape: gradient for gradient in gradients}.values())
    published.table(different, len(different) * [options])  # PyTorch's first calls with a shape are slow
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        published.table(gradients, len(gradients) * [options])  # every entry's `.item()` waits for the GPU
        times.append(time.perf_counter() - start)
    print(f"{method}: table of {len(gradients)} × {len(options)}: {1e3 * min(times):.2f} ms", flush=True)
