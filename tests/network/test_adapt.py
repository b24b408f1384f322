"""Weights of another stem, other channels, another number of patches."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import effssl
from effssl.network.adapt import adapt
from effssl.network.encoders import build_encoder
from effssl.network.foreign import load_weights


def test_gray_filters_answer_to_gray_images_as_before() -> None:
    gray = nn.Conv2d(1, 8, 3, bias=False)
    weight, text = adapt("conv1.weight", gray.weight.detach(), (8, 3, 3, 3), "conv1.weight") or (torch.empty(0), "")
    rgb = nn.Conv2d(3, 8, 3, bias=False)
    rgb.load_state_dict({"weight": weight})
    x = torch.randn(2, 1, 9, 9)
    torch.testing.assert_close(rgb(x.expand(-1, 3, -1, -1)), gray(x))
    assert text == "gray filters for 3 channels"


def test_rgb_filters_become_their_mean() -> None:
    rgb = torch.randn(8, 3, 3, 3)
    many, text = adapt("conv1.weight", rgb, (8, 12, 3, 3), "conv1.weight") or (torch.empty(0), "")
    torch.testing.assert_close(many[:, 5], rgb.mean(1) / 4)
    torch.testing.assert_close(many.sum(1), rgb.sum(1))  # the same response to equal channels
    one, _ = adapt("conv1.weight", rgb, (8, 1, 3, 3), "conv1.weight") or (torch.empty(0), "")
    torch.testing.assert_close(one[:, 0], rgb.sum(1))
    assert text == "the mean of filters of 3 channels for 12 channels"


def test_a_resized_kernel_answers_alike_to_a_pattern_that_shrank() -> None:
    """A ramp over the kernel, brighter than dark, seen at 7×7 and at 3×3 pixels: the same sum, and still a ramp."""
    kernel = (1 + torch.linspace(-1, 1, 7)).expand(1, 3, 7, 7).contiguous()
    small, text = adapt("conv1.weight", kernel, (1, 3, 3, 3), "conv1.weight") or (torch.empty(0), "")
    torch.testing.assert_close(small.sum(), kernel.sum())
    torch.testing.assert_close(small[0, 0, :, 1], torch.full((3,), 49 / 9))  # that of the middle column, times 49/9
    assert (small[0, 0].diff(dim=1) > 1).all()
    assert text == "kernels of the first convolution resized from 7×7 to 3×3"


@pytest.mark.parametrize(("extra", "old", "new"), [(1, 14, 4), (0, 4, 8), (2, 14, 4), (2, 2, 3)])
def test_position_embeddings_keep_their_tokens_and_their_order(extra: int, old: int, new: int) -> None:
    rows = torch.linspace(0, 1, old).repeat_interleave(old)  # the row of each patch
    positions = torch.cat([torch.full((extra,), 7.0), rows])[None, :, None].expand(1, -1, 5)
    found, text = adapt("pos_embed", positions, (1, extra + new**2, 5), "x") or (torch.empty(0), "")
    assert found.shape == (1, extra + new**2, 5)
    assert (found[:, :extra] == 7).all()
    grid = found[0, extra:, 0].view(new, new)
    assert (grid.diff(dim=0) > 0).all()
    torch.testing.assert_close(grid, grid[:, :1].expand(-1, new))
    assert text == f"position embeddings resized from {old}×{old} to {new}×{new}"


def test_a_transformer_takes_weights_of_another_image_size() -> None:
    large, small = (build_encoder("timm:vit_tiny_patch16_224", size) for size in (96, 48))
    result = load_weights(small.backbone, large.backbone.state_dict(), "large", adapting=True)
    assert result.adapted == ("position embeddings resized from 6×6 to 3×3",)
    assert torch.equal(small.backbone.blocks[3].mlp.fc1.weight, large.backbone.blocks[3].mlp.fc1.weight)


def test_a_distilled_transformer_takes_weights_of_another_image_size() -> None:
    """It has two tokens before those of the patches, and its feature is the mean of both."""
    large, small = (build_encoder("timm:deit_tiny_distilled_patch16_224", size) for size in (96, 48))
    result = load_weights(small.backbone, large.backbone.state_dict(), "large", adapting=True)
    assert result.adapted == ("position embeddings resized from 6×6 to 3×3",)
    assert torch.equal(small.backbone.pos_embed[:, :2], large.backbone.pos_embed[:, :2])
    assert len(small.stages()) == 1  # whose output is that of the whole network


def test_what_cannot_be_adapted() -> None:
    state = build_encoder("resnet18", 64, "small").backbone.state_dict()
    other = build_encoder("resnet18", 64, "small").backbone
    four = state | {"conv1.weight": torch.zeros(64, 4, 3, 3)}
    with pytest.raises(effssl.RequestError, match="is for images of 4 channels; images here have 3"):
        load_weights(other, four, "w.pth", adapting=True)
    with pytest.raises(
        effssl.RequestError, match=r"layer1.0.conv1.weight has shape \(64, 64, 5, 5\), this network needs"
    ):
        load_weights(other, state | {"layer1.0.conv1.weight": torch.zeros(64, 64, 5, 5)}, "w.pth", adapting=True)
    with pytest.raises(effssl.RequestError, match=r"conv1.weight has shape"):  # only where it was asked for
        load_weights(other, state | {"conv1.weight": torch.zeros(64, 3, 7, 7)}, "w.pth")
