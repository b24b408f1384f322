"""An encoder for CPU budgets: a ResNet with one block per stage that halves the image at once."""

from __future__ import annotations

from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock


class SmallEncoder(nn.Module):
    """Stem (3×3, stride 2) and four residual blocks; names as in torchvision's ResNet.

    At 32 pixels the blocks work on 16, 8, 4 and 2 pixels, so that most weights and little of the arithmetic lie
    where features are abstract.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.dim = 8 * width
        self.conv1 = nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity()
        self.layer1 = _block(width, width, 1)
        self.layer2 = _block(width, 2 * width, 2)
        self.layer3 = _block(2 * width, 4 * width, 2)
        self.layer4 = _block(4 * width, 8 * width, 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.avgpool(x).flatten(1)


def _block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    shortcut = None
    if stride != 1 or inputs != outputs:
        shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))
    return nn.Sequential(BasicBlock(inputs, outputs, stride, shortcut))
