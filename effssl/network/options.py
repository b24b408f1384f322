"""Settings of the network. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from effssl.schema import Count, Positive


@dataclass(frozen=True)
class Projector:
    """The projection head g: `layers` linear layers, d → hidden → … → out, ReLU between them."""

    layers: Count = 2
    """number of linear layers; 0 means z = h"""
    hidden: Positive = 512
    """width of the hidden layers"""
    out: Positive = 128
    """width of z"""
    norm: bool = True
    """batch norm after each hidden layer"""
    output_norm: bool = False
    """batch norm after the last layer too"""
