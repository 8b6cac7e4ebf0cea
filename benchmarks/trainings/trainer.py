"""A training by HuggingFace Trainer that knows nothing of commbench: a small GPT-2 on random
tokens.

``commbench tune -- torchrun --nproc-per-node 2 benchmarks/trainings/trainer.py`` tunes it. At the
end each rank prints a digest of its parameters.
"""

import argparse
import hashlib
import sys
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--layers", type=int, default=6)
parser.add_argument("--batch", type=int, default=8, help="sequences of a rank")
options = parser.parse_args()
VOCABULARY, TOKENS = 128, 32


class Tokens(Dataset):  # type: ignore[misc]
    """Random sequences."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, VOCABULARY, (TOKENS,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


torch.set_num_threads(1)
torch.manual_seed(0)
config = GPT2Config(
    vocab_size=VOCABULARY,
    bos_token_id=0,
    eos_token_id=0,
    n_positions=TOKENS,
    n_embd=options.width,
    n_layer=options.layers,
    n_head=2,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
)
with tempfile.TemporaryDirectory() as directory:
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir=directory,
            max_steps=options.steps,
            per_device_train_batch_size=options.batch,
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
