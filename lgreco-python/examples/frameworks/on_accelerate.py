"""A trainer on Hugging Face's Accelerate: torchrun --nproc-per-node 2 on_accelerate.py FOLDER [--resume]."""

import argparse
import pathlib

import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from lgreco.torch import register  # 1

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", type=pathlib.Path, help="where the checkpoint is")
parser.add_argument("--resume", action="store_true")
arguments = parser.parse_args()

torch.manual_seed(0)
points = torch.randn(2048, 64)
kinds = (points @ torch.randn(64, 10)).argmax(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(points, kinds), batch_size=16, shuffle=True)

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
state = register(model, method="topk", default=0.05, start_iter=10, period=50)  # 2; under fp16 grad_scaler=accelerator.scaler
if arguments.resume:
    accelerator.load_state(arguments.folder)
    loaded = state.load(arguments.folder / "lgreco")  # 3
    accelerator.print(f"continues at step {loaded.step}")

for epoch in range(4):
    losses = []
    for batch, expected in loader:
        with accelerator.accumulate(model):
            loss = cross_entropy(model(batch), expected)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    accelerator.print(f"loss {sum(losses) / len(losses):.3f}, {state.compression_stats()[0]:.1f} times fewer bytes")

accelerator.save_state(arguments.folder)
state.save(arguments.folder / "lgreco")  # 4
accelerator.end_training()
