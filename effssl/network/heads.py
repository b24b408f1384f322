"""Small MLPs on top of the encoder: projectors, predictors and the heads of pretext tasks."""

from __future__ import annotations

import itertools

from torch import nn


def mlp(
    sizes: list[int], norm: bool = True, output_norm: bool = False, norm_type: type[nn.Module] = nn.BatchNorm1d
) -> nn.Sequential:
    """Linear layers through `sizes` with ReLU between them; batch norm on hidden layers, and on the output if told.

    >>> [type(layer).__name__ for layer in mlp([4, 8, 2])]
    ['Linear', 'BatchNorm1d', 'ReLU', 'Linear']
    """
    layers: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        last = i == len(sizes) - 2
        normed = output_norm if last else norm
        layers.append(nn.Linear(inputs, outputs, bias=not normed))  # a norm has a bias of its own
        if normed:
            layers.append(norm_type(outputs))
        if not last:
            layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)
