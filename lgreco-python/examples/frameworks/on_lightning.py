"""A trainer on Lightning, which starts its processes itself: python on_lightning.py FOLDER [--resume]."""

import argparse
import pathlib
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from lgreco.torch import register


class LGreCo(lightning.Callback):
    """Compresses gradients under strategy="ddp", and saves and loads lgreco's state beside each checkpoint."""

    def __init__(self, **options: Any) -> None:
        self.options, self.saved = options, None

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self.state = register(trainer.strategy.model, **self.options)
        if self.saved is not None:
            print(f"continues at step {self.state.load(self.saved).step}")

    def on_save_checkpoint(self, trainer: lightning.Trainer, module: lightning.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["lgreco"] = f"{trainer.default_root_dir}/lgreco/step{trainer.global_step}"
        self.state.save(checkpoint["lgreco"])

    def on_load_checkpoint(self, trainer: lightning.Trainer, module: lightning.LightningModule, checkpoint: dict[str, Any]) -> None:
        self.saved = checkpoint["lgreco"]


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        loss = cross_entropy(self.layers(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def on_train_epoch_end(self) -> None:
        ratio = compress.state.compression_stats()[0]
        self.print(f"loss {sum(self.losses) / len(self.losses):.3f}, {ratio:.1f} times fewer bytes")
        self.losses.clear()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="where checkpoints are")
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    points = torch.randn(2048, 64)
    loader = DataLoader(TensorDataset(points, (points @ torch.randn(64, 10)).argmax(1)), batch_size=16, shuffle=True)
    compress = LGreCo(method="topk", default=0.05, start_iter=10, period=50)
    callbacks = [compress, ModelCheckpoint(arguments.folder, save_last=True)]
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=8 if arguments.resume else 4, callbacks=callbacks,
        default_root_dir=arguments.folder, accumulate_grad_batches=2, logger=False, enable_progress_bar=False,
    )
    trainer.fit(Classifier(), loader, ckpt_path=arguments.folder / "last.ckpt" if arguments.resume else None)
