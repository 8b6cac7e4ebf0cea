"""A training by Lightning that knows nothing of commbench: layers of one width on random data.

``commbench tune -- python benchmarks/trainings/lightning_fit.py`` tunes it; Lightning starts the
second rank itself. At the end each rank prints a digest of its parameters.
"""

import argparse
import hashlib
import os
import sys
import tempfile

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--batch", type=int, default=256, help="samples of a rank")
options = parser.parse_args()


class Regression(lightning.LightningModule):  # type: ignore[misc]
    """Layers of one width."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Linear(options.width, options.width) for _ in range(options.layers))
        )

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss."""
        return self.layers(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


torch.set_num_threads(1)
lightning.seed_everything(0)
model = Regression()
nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1"))  # more than one under torchrun
with tempfile.TemporaryDirectory() as directory:
    trainer = lightning.Trainer(
        max_steps=options.steps,
        max_epochs=-1,
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "2")),
        num_nodes=nodes,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=directory,
    )
    trainer.fit(
        model, DataLoader(TensorDataset(torch.randn(8192, options.width)), batch_size=options.batch)
    )
parameters = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
sys.stdout.write(f"DIGEST {hashlib.sha256(parameters).hexdigest()}\n")
sys.stdout.flush()
