"""effssl's terms in a LightningModule, with your own network, views and DataLoader.

pip install lightning
python examples/lightning_module.py --data path/to/photos
"""

import argparse
from pathlib import Path
from typing import Any

import lightning
import torch
import torchvision
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

import effssl


class TwoViews(Dataset):
    """Two random views of each photograph in a folder."""

    def __init__(self, folder: str, size: int) -> None:
        self.paths = sorted(
            path for path in Path(folder).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png")
        )
        self.view = v2.Compose([
            v2.ToImage(),
            v2.RandomResizedCrop(size, scale=(0.2, 1.0)),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ])  # fmt: skip

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor, int]:
        photo = Image.open(self.paths[row]).convert("RGB")
        return self.view(photo), self.view(photo), row


class SelfSupervised(lightning.LightningModule):
    """Any torch network N×3×S×S → N×width, trained by a sum of effssl's terms."""

    def __init__(self, backbone: nn.Module, objective: str, size: int, batch_size: int, lr: float) -> None:
        super().__init__()
        self.objective = effssl.objective(objective, backbone, image_size=size, batch_size=batch_size)
        self.lr, self.updates = lr, 0

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        first, second, rows = batch
        loss, metrics = self.objective(self.objective.views(first, second, step=self.updates, index=rows.cpu()))
        self.log_dict({"loss": loss, **metrics}, prog_bar=True, on_step=False, on_epoch=True, batch_size=len(rows))
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.objective.before_update(self.updates)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        self.updates += 1
        self.objective.after_update(self.updates / float(self.trainer.estimated_stepping_batches))

    def on_train_epoch_end(self) -> None:
        print(f"epoch {self.current_epoch + 1}: loss {self.trainer.callback_metrics['loss']:.4f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.objective.parameters(), self.lr, momentum=0.9, weight_decay=1e-4)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of photographs")
    parser.add_argument("--objective", default="simsiam+rotation")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()

    lightning.seed_everything(0)
    resnet = torchvision.models.resnet18(weights=None)
    resnet.fc = nn.Identity()
    module = SelfSupervised(resnet, args.objective, args.size, args.batch_size, args.lr)
    views = DataLoader(TwoViews(args.data, args.size), args.batch_size, shuffle=True, drop_last=True)
    trainer = lightning.Trainer(max_epochs=args.epochs, logger=False, enable_checkpointing=False, log_every_n_steps=1)
    trainer.fit(module, views)
    torch.save(resnet.state_dict(), "encoder.pth")
    print(f"{module.updates} updates: encoder.pth   next: effssl eval knn encoder.pth --encoder resnet18 --data …")
