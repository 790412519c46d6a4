"""Local training with compressed outer steps: torchrun --nproc-per-node 2 examples/outer.py [--steps N] [--delay N]."""

import argparse

import torch
import torch.distributed as dist

from lgreco.torch import OuterStep

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--delay", type=int, default=0)
arguments = parser.parse_args()

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
teacher = torch.nn.Linear(128, 128)
model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.Tanh(), torch.nn.Linear(256, 128))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
outer = OuterStep(model, every=30, delay=arguments.delay, method="topk", default=0.05, min_elements=1)

draw = torch.Generator().manual_seed(dist.get_rank())
for step in range(arguments.steps):
    x = torch.randn(32, 128, generator=draw)
    optimizer.zero_grad()
    loss = (model(x) - teacher(x).tanh()).square().mean()
    loss.backward()
    optimizer.step()
    if outer.step() and dist.get_rank() == 0:
        ratio, _, sent = outer.compression_stats()
        print(f"step {step + 1}: loss {loss.item():.4f}, {sent:,} bytes sent, {ratio:.1f} times fewer", flush=True)
outer.finish()
dist.destroy_process_group()
