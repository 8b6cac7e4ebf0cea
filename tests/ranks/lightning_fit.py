"""A training by Lightning that knows nothing of commbench; prints a digest of its parameters at the end."""

import hashlib
import sys

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS, OUTPUT = int(sys.argv[1]), sys.argv[2]


class Regression(lightning.LightningModule):
    """Layers of one width."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss."""
        return self.layers(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


torch.set_num_threads(1)
lightning.seed_everything(0)
model = Regression()
trainer = lightning.Trainer(
    max_steps=STEPS,
    max_epochs=-1,
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    default_root_dir=OUTPUT,
)
trainer.fit(model, DataLoader(TensorDataset(torch.randn(4000, 256)), batch_size=8))
parameters = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
sys.stdout.write(f"DIGEST {hashlib.sha256(parameters).hexdigest()}\n")
sys.stdout.flush()
