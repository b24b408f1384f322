"""Encoders for CPU budgets: a ResNet with one block per stage that halves the image at once, and `tiny`."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from effssl.network.patches import kmeans_filters, pca_filters, sample_patches

WIDTH = 16


def small_width(name: str) -> int:
    """Channels of the first convolution of an encoder by its name, 0 if it is another kind.

    >>> small_width("small"), small_width("small-32"), small_width("tiny"), small_width("resnet18")
    (16, 32, 16, 0)
    """
    found = re.fullmatch(r"(?:small|tiny)(?:-([1-9]\d{0,3}))?", name)
    return int(found[1] or WIDTH) if found else 0


class Conv3x3(nn.Conv2d):
    """A padded 3×3 convolution that is one matrix product where the image is at most 2×2 pixels.

    There every output pixel sees all pixels of the image, and most of the kernel's taps fall on padding: the product
    leaves those out, which is the same function at up to a ninth of the arithmetic.
    """

    def forward(self, x: Tensor) -> Tensor:
        side = x.shape[-1]
        if side > 2 or x.shape[-2] != side:
            return super().forward(x)
        n, out, kernel = x.shape[0], -(-side // self.stride[0]), self.weight.permute(0, 2, 3, 1)  # outputs×3×3×inputs
        taps = [kernel[:, 1 - i : 1 - i + side, 1 - j : 1 - j + side] for i in range(out) for j in range(out)]
        matrix = torch.stack(taps).view(out * out * self.out_channels, side * side * self.in_channels)
        y = x.permute(0, 2, 3, 1).reshape(n, -1) @ matrix.T
        return y.view(n, out, out, self.out_channels).permute(0, 3, 1, 2)


class Block(nn.Module):
    """A residual block of two convolutions; names as in torchvision's BasicBlock."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = Conv3x3(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = Conv3x3(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.downsample(x)
        return self.relu(y)


class SmallEncoder(nn.Module):
    """Stem (3×3, stride 2) and four residual blocks; names as in torchvision's ResNet.

    At 32 pixels the blocks work on 16, 8, 4 and 2 pixels, so that most weights and little of the arithmetic lie
    where features are abstract. The first block can be left out: it has few weights and takes a quarter of a step.

    A stem of PCA or k-means filters is computed from the training images (`derive`): filters of both signs, no batch
    norm; for images above 64 pixels 6×6 with stride 4.
    """

    def __init__(
        self,
        width: int = WIDTH,
        first_block: bool = True,
        stem: str = "learned",
        large_images: bool = False,
        inputs: int = 3,
    ) -> None:
        """`inputs` is the number of channels of an image."""
        super().__init__()
        self.dim = 8 * width
        self.stem = stem
        side, stride = (6, 4) if large_images and stem != "learned" else (3, 2)
        channels = width if stem == "learned" else 2 * min(width, inputs * side**2)  # filters of both signs
        self.conv1 = nn.Conv2d(inputs, channels, side, stride, padding=1, bias=stem != "learned")
        self.bn1 = nn.BatchNorm2d(width) if stem == "learned" else nn.Identity()
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity()
        self.layer1 = nn.Sequential(*([Block(channels, channels, 1)] if first_block else []))
        self.layer2 = nn.Sequential(Block(channels, 2 * width, 2))
        self.layer3 = nn.Sequential(Block(2 * width, 4 * width, 2))
        self.layer4 = nn.Sequential(Block(4 * width, 8 * width, 2))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if stem != "learned":
            self.conv1.requires_grad_(False)

    @torch.no_grad()
    def derive(self, images: Tensor, generator: torch.Generator, train_stem: bool = False) -> None:
        """Compute the stem's filters from a sample of normalized images, N×C×S×S; they are fixed unless told."""
        if self.stem == "learned":
            return
        half = len(self.conv1.weight) // 2
        patches = sample_patches(images, self.conv1.kernel_size[0], generator)
        if self.stem == "pca":
            filters, mean = pca_filters(patches, half)
        else:
            filters, mean = kmeans_filters(patches, half, generator)
            filters = filters / ((patches - mean) @ filters.T).std(0).clamp(min=1e-6)[:, None]
        offset = -filters @ mean
        assert self.conv1.bias is not None
        self.conv1.weight.copy_(torch.cat([filters, -filters]).view_as(self.conv1.weight))
        self.conv1.bias.copy_(torch.cat([offset, -offset]))
        self.conv1.requires_grad_(train_stem)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.avgpool(x).flatten(1)
