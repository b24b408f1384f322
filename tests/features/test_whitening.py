"""A finished encoder: what is joined, what is whitened, and the encoders that cost nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from effssl.data import ArrayImages
from effssl.features.extract import extract
from effssl.features.whitening import ReadoutFitter, patch_encoder, untrained_encoder
from effssl.network.encoders import build_encoder
from effssl.network.loaded import LoadedEncoder, dump_encoder, freeze, load_encoder
from effssl.network.options import ReadoutOptions

ABOUT = {"encoder": "small", "stem": "auto", "image_size": 24, "mean": [0.5] * 3, "std": [0.25] * 3}


@pytest.fixture(scope="module")
def images(tiny_photos: Tensor) -> ArrayImages:
    return ArrayImages(tiny_photos, torch.arange(256) % 4, list("abcd"))


@pytest.fixture(scope="module")
def plain() -> LoadedEncoder:
    torch.manual_seed(0)
    return freeze(build_encoder("small", 24), ABOUT)


def with_readout(plain: LoadedEncoder, images: ArrayImages, **options) -> LoadedEncoder:
    fitter = ReadoutFitter(images, ReadoutOptions(**options), plain.about, seed=0)
    return freeze(fitter.fit(plain.encoder), plain.about)


def test_features_are_joined_with_the_means_of_late_maps(plain: LoadedEncoder, images: ArrayImages) -> None:
    x = plain.preprocess(images.pixels[:4])
    backbone = plain.backbone
    early = backbone.layer3(backbone.layer2(backbone.layer1(backbone.relu(backbone.bn1(backbone.conv1(x))))))
    late = backbone.layer4(early)
    assert late.shape[-1] == 2
    means = [torch.nn.functional.adaptive_avg_pool2d(y, 2).flatten(1) for y in (late, early)]
    expected = torch.cat([late.mean((2, 3)), *means], 1)
    assert torch.allclose(plain.encoder.joined(x), expected, atol=1e-5)


def test_a_finished_encoder_gives_whitened_features_of_both_parts(plain: LoadedEncoder, images: ArrayImages) -> None:
    finished = with_readout(plain, images, dim=20, patches=8, patch_stride=4, patch_dim=12)
    h = extract(finished, images).h
    assert finished.dim == h.shape[1] == 32
    covariance = np.cov(h.double().numpy().T) / 0.125**2
    for part in (covariance[:20, :20], covariance[20:, 20:]):
        assert np.abs(part - np.eye(len(part))).max() < 0.1


def test_the_encoder_itself_is_left_as_it_is(plain: LoadedEncoder, images: ArrayImages) -> None:
    before = plain(images.pixels[:4])
    finished = with_readout(plain, images, dim=20)
    assert torch.equal(plain(images.pixels[:4]), before)
    assert torch.equal(finished.without_whitening()(images.pixels[:4]), before)
    assert plain.without_whitening() is plain


@pytest.mark.parametrize("options", [{"dim": 20}, {"maps": False, "dim": 20, "patches": 8, "patch_dim": 12}])
def test_the_readout_belongs_to_the_encoder_file(
    plain: LoadedEncoder, images: ArrayImages, options: dict, tmp_path
) -> None:
    finished = with_readout(plain, images, **options)
    path = tmp_path / "encoder.safetensors"
    path.write_bytes(dump_encoder(finished.encoder, finished.about))
    loaded = load_encoder(path)
    assert torch.equal(loaded(images.pixels[:8]), finished(images.pixels[:8]))
    assert loaded.dim == finished.dim


def test_patches_are_fitted_once_for_all_encoders_of_a_run(plain: LoadedEncoder, images: ArrayImages) -> None:
    fitter = ReadoutFitter(images, ReadoutOptions(dim=20, patches=8, patch_dim=12), ABOUT, seed=0)
    torch.manual_seed(1)
    other = freeze(build_encoder("small", 24), ABOUT)
    one, two = fitter.fit(plain.encoder).readout, fitter.fit(other.encoder).readout
    assert one.patches is two.patches
    assert not torch.equal(one.whitening.matrix, two.whitening.matrix)


def test_encoders_that_cost_nothing(plain: LoadedEncoder, images: ArrayImages) -> None:
    patches = patch_encoder(images, plain, "patches-20")
    h = extract(patches, images).h
    assert h.shape == (256, 160)  # as many as there are responses
    assert torch.allclose(h.mean(0), torch.zeros(160), atol=1e-3)
    assert int((h.std(0) > 0).sum()) == 64  # as many as 256 images determine
    untrained = untrained_encoder(images, plain)
    assert not torch.equal(untrained(images.pixels[:4]), plain(images.pixels[:4]))
    finished = with_readout(plain, images, dim=20)
    assert untrained_encoder(images, finished).dim == 20


def test_neighbors_of_patches_are_of_the_same_photograph(plain: LoadedEncoder, images: ArrayImages) -> None:
    h = torch.nn.functional.normalize(extract(patch_encoder(images, plain, "patches-20"), images).h, dim=1)
    similarity = h @ h.T - 2 * torch.eye(256)
    photograph = torch.arange(256) // 128
    share = (photograph[similarity.topk(5).indices] == photograph[:, None]).float().mean()
    assert share > 0.75  # chance is a half
