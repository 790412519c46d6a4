"""A character language model on several processes: torchrun --nproc-per-node 2 examples/char_lm.py TEXT [--steps N]."""

import argparse
import os
import pathlib

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

from lgreco.torch import LGreCoState, lgreco_hook  # 1

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("text", type=pathlib.Path)
parser.add_argument("--steps", type=int, default=300)
arguments = parser.parse_args()

dist.init_process_group("gloo")
torch.set_num_threads(max(1, (os.cpu_count() or 1) // dist.get_world_size()))
torch.manual_seed(0)
text = arguments.text.read_text()
alphabet = sorted(set(text))
characters = torch.tensor([alphabet.index(c) for c in text])


class Model(torch.nn.Module):
    def __init__(self, width: int = 128, context: int = 64) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(len(alphabet), width)
        self.position = torch.nn.Parameter(torch.zeros(context, width))
        layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, len(alphabet))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.layers(self.embed(x) + self.position, mask, is_causal=True))


model = DDP(Model(), bucket_cap_mb=1)
state = LGreCoState(None, model, method="hybrid", start_iter=20, period=100)  # 2
model.register_comm_hook(state, lgreco_hook)  # 3

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
draw = torch.Generator().manual_seed(dist.get_rank())
for step in range(arguments.steps):
    starts = torch.randint(len(characters) - 65, (16,), generator=draw)
    rows = torch.stack([characters[start : start + 65] for start in starts])
    optimizer.zero_grad()
    loss = cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0 and (step + 1) % 20 == 0:
        ratio, _, sent = state.compression_stats()  # 4
        print(f"step {step + 1}: loss {loss.item():.3f}, {sent:,} bytes sent, {ratio:.1f} times fewer", flush=True)
dist.destroy_process_group()
