"""Filters of patches by numpy: PCA whitens, k-means finds clusters, and pooled responses are what the paper says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from effssl.network.encoders import build_encoder
from effssl.network.patches import (
    PatchResponses,
    kmeans_filters,
    pca_filters,
    region_means,
    sample_patches,
)
from effssl.runtime.errors import RequestError
from effssl.runtime.randomness import generator


@pytest.fixture(scope="module")
def images(tiny_photos: Tensor) -> Tensor:
    return tiny_photos[:64].float() / 64 - 2  # N×3×24×24


@pytest.fixture(scope="module")
def responses(images: Tensor) -> PatchResponses:
    patches = PatchResponses(10, side=5, stride=2, pool=2)
    patches.fit(images, generator(0, "test"))
    return patches


def test_sampled_patches_are_parts_of_the_images(images: Tensor) -> None:
    patches = sample_patches(images[:2], 4, generator(0, "test"), count=50).view(50, 3, 4, 4)
    every = images[:2].unfold(2, 4, 1).unfold(3, 4, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 48)
    assert torch.cdist(patches.flatten(1), every).min(1).values.max() < 1e-3


def test_pca_filters_give_uncorrelated_responses_of_unit_variance(images: Tensor) -> None:
    patches = sample_patches(images, 3, generator(0, "test"), count=5000)
    filters, mean = pca_filters(patches, 6)
    covariance = np.cov(((patches - mean) @ filters.T).numpy().T)
    assert np.abs(covariance - np.eye(6)).max() < 0.05  # not exactly: a constant is added to the variances
    values = np.linalg.eigvalsh(np.cov(patches.double().numpy().T))[::-1]
    assert np.allclose(filters.norm(dim=1).numpy() ** -2, values[:6] + 5e-3, rtol=1e-2)


def test_pca_filters_do_not_depend_on_the_sign_of_eigenvectors(images: Tensor) -> None:
    filters, _ = pca_filters(sample_patches(images, 3, generator(0, "test"), count=5000), 6)
    assert (filters.gather(1, filters.abs().argmax(1, keepdim=True)) > 0).all()


def test_kmeans_finds_separate_clusters() -> None:
    centers = torch.eye(4).repeat_interleave(3, 1) * 5  # 4×12
    noise = torch.randn(4000, 12, generator=generator(0, "test"))
    patches = centers[torch.arange(4000) % 4] + 0.3 * noise
    filters, mean = kmeans_filters(patches, 4, generator(1, "test"))
    nearest = ((patches - mean) @ filters.T).argmax(1)
    groups = [set(nearest[torch.arange(4000) % 4 == k].tolist()) for k in range(4)]
    assert sorted(map(len, groups)) == [1, 1, 1, 1]
    assert len(set.union(*groups)) == 4


def by_loop(patches: PatchResponses, image: np.ndarray) -> np.ndarray:
    """Every patch by itself: contrast-normalized, compared with every filter; both signs averaged over regions."""
    filters, offset = patches.filters.double().flatten(1).numpy(), patches.offset.double().numpy()
    places = range(0, image.shape[1] - patches.side + 1, patches.stride)
    found = np.zeros((2 * len(filters), len(places), len(places)))
    for i, top in enumerate(places):
        for j, left in enumerate(places):
            patch = image[:, top : top + patches.side, left : left + patches.side].ravel()
            patch = (patch - patch.mean()) / np.sqrt(patch.var() + 4e-3)
            y = filters @ patch - offset
            found[:, i, j] = np.concatenate([np.maximum(y - 0.5, 0), np.maximum(-y - 0.5, 0)])
    half = len(places) // 2  # of ten places
    cuts = (slice(0, half), slice(half, None))
    return np.stack([found[:, a, b].mean((1, 2)) for a in cuts for b in cuts], 1).ravel()


def test_responses_are_those_of_single_patches(images: Tensor, responses: PatchResponses) -> None:
    found = responses(images[:3])
    assert found.shape == (3, responses.dim)
    assert found.min() >= -1e-6
    assert (found > 0.01).float().mean() > 0.2
    for one, image in zip(found, images, strict=False):
        assert np.allclose(one.double().numpy(), by_loop(responses, image.double().numpy()), atol=1e-4)


def test_many_images_at_once_are_computed_in_parts(
    images: Tensor, responses: PatchResponses, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = responses(images)
    monkeypatch.setattr("effssl.network.patches.CACHED", 5 * 10 * 12**2)  # five images
    assert torch.allclose(responses(images), whole, atol=1e-5)


def test_large_images_are_averaged_down(photos: Tensor, responses: PatchResponses) -> None:
    large = photos[:2].float() / 64 - 2  # 96 pixels
    assert torch.allclose(responses(large), responses(torch.nn.functional.avg_pool2d(large, 3)), atol=1e-5)


def test_regions_of_odd_and_tiny_maps() -> None:
    x = torch.arange(9.0).view(1, 1, 3, 3)
    assert region_means(x, 2).flatten().tolist() == [2.0, 3.0, 5.0, 6.0]  # 2×2 windows that overlap
    assert region_means(torch.ones(1, 1, 1, 1), 2).flatten().tolist() == [1.0] * 4
    assert region_means(x, 1).item() == 4.0


def test_pixels_are_the_image_at_a_smaller_side(images: Tensor) -> None:
    encoder = build_encoder("pixels-8", 24)
    assert encoder.dim == 3 * 64
    by_torch = torch.nn.functional.interpolate(images, (8, 8), mode="bilinear", antialias=True)
    assert torch.equal(encoder(images), by_torch.flatten(1))
    assert torch.equal(build_encoder("pixels-24", 24)(images), images.flatten(1))


def test_a_stem_of_patches_is_for_small_encoders() -> None:
    with pytest.raises(RequestError, match="for the encoders tiny and small, not for resnet18"):
        build_encoder("resnet18", 32, "pca")


def test_images_smaller_than_a_patch_are_refused(images: Tensor) -> None:
    with pytest.raises(RequestError, match="patches have 6 pixels, images 4"):
        PatchResponses(10).fit(images[..., :4, :4], generator(0, "test"))
