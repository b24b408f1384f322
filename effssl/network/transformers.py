"""A timm vision transformer as a sequence of stages: patches become tokens, blocks, one feature from all tokens."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

POOLS = ("token", "avg")
PARTS = ("patch_embed", "pos_embed", "blocks", "norm", "fc_norm", "norm_pre", "patch_drop", "_pos_embed", "global_pool")


def has_blocks(backbone: nn.Module) -> bool:
    """Whether a network is a transformer whose blocks are stages: one of timm's, with plain pooling."""
    if not all(hasattr(backbone, part) for part in PARTS) or getattr(backbone, "attn_pool", None) is not None:
        return False
    if hasattr(backbone, "dist_token"):  # the feature is a mean of two tokens
        return False
    return getattr(backbone, "global_pool", "") in POOLS and not getattr(backbone, "pool_include_prefix", False)


def block_stages(backbone: Any) -> list[nn.Module]:
    """Embedding of patches, all blocks but the last, and the last block with norm and pooling."""
    *blocks, last = backbone.blocks
    return [PatchTokens(backbone), *blocks, nn.Sequential(last, PooledToken(backbone))]


class PatchTokens(nn.Module):
    """Images N×3×S×S → tokens N×T×D; position embeddings are interpolated for views of another size."""

    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.parts = nn.ModuleList([backbone.patch_embed, backbone.norm_pre])
        tokens = [getattr(backbone, name, None) for name in ("cls_token", "reg_token", "pos_embed")]
        self.tokens = nn.ParameterList([token for token in tokens if token is not None])
        self.whole = (backbone,)  # a tuple, so that its other weights are not those of this stage

    def forward(self, x: Tensor) -> Tensor:
        (backbone,) = self.whole
        return backbone.norm_pre(backbone.patch_drop(backbone._pos_embed(backbone.patch_embed(x))))


class PooledToken(nn.Module):
    """Tokens N×T×D → h, N×D: the class token, or the mean of the patch tokens."""

    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.norm, self.fc_norm = backbone.norm, backbone.fc_norm
        self.mean = backbone.global_pool == "avg"
        self.prefix: int = backbone.num_prefix_tokens

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return self.fc_norm(x[:, self.prefix :].mean(1) if self.mean else x[:, 0])
