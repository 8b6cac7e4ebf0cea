"""A training by HuggingFace Trainer that knows nothing of commbench; prints a digest of its parameters at the end."""

import hashlib
import sys

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

STEPS, OUTPUT = int(sys.argv[1]), sys.argv[2]


class Tokens(Dataset):
    """Random tokens."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, 128, (16,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


torch.set_num_threads(1)
torch.manual_seed(0)
config = GPT2Config(vocab_size=128, n_positions=16, n_embd=128, n_layer=3, n_head=2, resid_pdrop=0, embd_pdrop=0)
trainer = Trainer(
    model=GPT2LMHeadModel(config),
    args=TrainingArguments(
        output_dir=OUTPUT,
        max_steps=STEPS,
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=50,
        disable_tqdm=True,
        ddp_backend="gloo",
    ),
    train_dataset=Tokens(),
)
trainer.train()
parameters = b"".join(p.detach().numpy().tobytes() for p in trainer.model.parameters())
sys.stdout.write(f"DIGEST {hashlib.sha256(parameters).hexdigest()}\n")
sys.stdout.flush()
torch.distributed.destroy_process_group()
