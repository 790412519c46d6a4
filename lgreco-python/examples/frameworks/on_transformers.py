"""A trainer on Hugging Face's Transformers: torchrun --nproc-per-node 2 on_transformers.py FOLDER [--resume]."""

import argparse
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lgreco.torch import register


class LGreCo(TrainerCallback):
    """Compresses a trainer's gradients, and saves and loads lgreco's state in each checkpoint."""

    def __init__(self, trainer: Trainer, **options: Any) -> None:
        self.trainer, self.options = trainer, options

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.state = register(self.trainer.model_wrapped, **self.options)
        if state.global_step > 0:
            print(f"continues at step {self.state.load(self._folder(args, state)).step}")

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.state.save(self._folder(args, state))

    def _folder(self, args: TrainingArguments, state: TrainerState) -> str:
        return f"{args.output_dir}/checkpoint-{state.global_step}/lgreco"


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", help="where checkpoints are")
parser.add_argument("--resume", action="store_true")
arguments = parser.parse_args()

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
starts = torch.randint(0, 64, (2048, 1))
sequences = (starts + torch.arange(32) * (1 + starts % 3)) % 64
args = TrainingArguments(
    arguments.folder, use_cpu=True, per_device_train_batch_size=8, gradient_accumulation_steps=2, learning_rate=3e-3,
    max_steps=120 if arguments.resume else 60, save_steps=60, logging_steps=20, disable_tqdm=True, report_to=[],
)
trainer = Trainer(model, args, train_dataset=[{"input_ids": row, "labels": row} for row in sequences])
compress = LGreCo(trainer, method="qsgd", start_iter=10, period=20)
trainer.add_callback(compress)
trainer.train(resume_from_checkpoint=arguments.resume)
if args.process_index == 0:
    print(f"{compress.state.compression_stats()[0]:.1f} times fewer bytes")
