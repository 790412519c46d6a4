"""Trains a model that is sharded within a node and compressed between nodes: torchrun --nproc-per-node 4 examples/hsdp.py
[--steps N].

The four processes play two nodes of two processes. On real nodes, the inner group would use NCCL.
"""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from lgreco.torch import LGreCoShardedState

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=200)
steps = parser.parse_args().steps

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("replicate", "shard"))

model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.Tanh()) for _ in range(4)])
teacher = torch.nn.Linear(128, 128)
for block in model:
    fully_shard(block, mesh=mesh["shard"])
fully_shard(model, mesh=mesh["shard"])
state = LGreCoShardedState(model, replicate_group=mesh.get_group("replicate"), method="topk", default=0.1, start_iter=20)

optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
draw = torch.Generator().manual_seed(dist.get_rank())
for step in range(steps):
    x = torch.randn(32, 128, generator=draw)
    optimizer.zero_grad()
    loss = (model(x) - teacher(x).tanh()).square().mean()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0 and (step + 1) % 20 == 0:
        ratio, _, sent = state.compression_stats()
        print(f"step {step + 1}: loss {loss.item():.4f}, {sent:,} bytes between nodes, {ratio:.1f} times fewer", flush=True)
dist.destroy_process_group()
