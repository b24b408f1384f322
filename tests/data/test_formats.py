"""Files of other channels and depths than pictures have: TIFF, DICOM, deep PNG, .npy, and modern picture formats."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import numpy as np
import pydicom
import pytest
import tifffile
import torch
from PIL import Image
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid
from torch import Tensor

import effssl
from effssl.augment.pixel_format import PixelFormat
from effssl.cli import main
from effssl.data import FolderImages, open_data
from effssl.data.file_types.file_type import over_white
from effssl.data.formats import examine, read_pixels
from effssl.data.images import Reading, crop_batches, whole_boxes
from effssl.runtime.errors import RequestError

DEEP = {"uint16": (0.0, 65535.0), "float32": (0.0, 1.0)}


@pytest.fixture(scope="module")
def scene(photos: Tensor) -> np.ndarray:
    """A photograph as five channels of 16 bits, 96×80×5."""
    rgb = photos[5].permute(1, 2, 0).numpy()[:, :80].astype(np.uint16) * 200
    return np.concatenate([rgb, rgb[..., :1] // 2 + 7000, rgb[..., 1:2] // 3], 2)


def save_dicom(path: Path, values: np.ndarray, **tags) -> None:
    about = FileMetaDataset()
    about.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    about.MediaStorageSOPInstanceUID = generate_uid()
    about.TransferSyntaxUID = ExplicitVRLittleEndian
    image = FileDataset(str(path), {}, file_meta=about, preamble=b"\0" * 128)
    image.Rows, image.Columns = values.shape
    image.SamplesPerPixel, image.PhotometricInterpretation = 1, "MONOCHROME2"
    image.BitsAllocated, image.BitsStored, image.HighBit, image.PixelRepresentation = 16, 12, 11, 0
    for name, value in tags.items():
        setattr(image, name, value)
    image.PixelData = values.astype(np.uint16).tobytes()
    image.save_as(path, enforce_file_format=True)


def crops(images, pixels: PixelFormat | None = None) -> Tensor:
    boxes = whole_boxes(images.sizes)
    return torch.cat([x for x, _ in crop_batches(images, boxes, 32, 4, Reading(workers=0, pixels=pixels))])


@pytest.mark.parametrize("layout", ["samples", "pages", "tiles", "planes"])
def test_tiff_keeps_all_channels_and_values(tmp_path: Path, scene: np.ndarray, layout: str) -> None:
    file, pages = tmp_path / "a.tif", np.moveaxis(scene, 2, 0)
    if layout == "samples":
        tifffile.imwrite(file, scene, photometric="minisblack", planarconfig="contig")
    elif layout == "pages":
        tifffile.imwrite(file, pages, photometric="minisblack", compression="zlib")
    elif layout == "tiles":
        tifffile.imwrite(file, pages, photometric="minisblack", tile=(32, 32), compression="lzw")
    else:
        tifffile.imwrite(file, pages, photometric="minisblack", planarconfig="separate")
    about = examine(file)
    assert about is not None
    assert (about.size, about.pixels) == ((96, 80), PixelFormat(5, "uint16", DEEP["uint16"]))
    assert np.array_equal(read_pixels(file, about.pixels), scene)
    assert np.array_equal(read_pixels(file.read_bytes(), about.pixels), scene)


def test_tiff_of_8_bits_is_a_picture_unless_it_has_other_channels(tmp_path: Path, scene: np.ndarray) -> None:
    rgb = (scene[..., :3] >> 8).astype(np.uint8)
    tifffile.imwrite(tmp_path / "rgb.tif", rgb, photometric="rgb")
    near_infrared = np.concatenate([rgb, rgb[..., :1]], 2)
    tifffile.imwrite(tmp_path / "nir.tif", near_infrared, photometric="rgb", extrasamples=["unspecified"])
    assert examine(tmp_path / "rgb.tif").pixels.is_picture
    nir = examine(tmp_path / "nir.tif").pixels
    assert (nir.channels, nir.depth) == (4, "uint8")
    assert np.array_equal(read_pixels(tmp_path / "nir.tif", nir), near_infrared)


def test_deep_png_keeps_16_bits(tmp_path: Path, scene: np.ndarray) -> None:
    from imagecodecs import png_encode

    (tmp_path / "rgb.png").write_bytes(png_encode(scene[..., :3].copy()))
    Image.fromarray(scene[..., 3].copy()).save(tmp_path / "gray.png")
    for name, expected in (("rgb.png", scene[..., :3]), ("gray.png", scene[..., 3:4])):
        about = examine(tmp_path / name)
        assert about.size == (96, 80)
        assert about.pixels == PixelFormat(expected.shape[2], "uint16", DEEP["uint16"])
        assert np.array_equal(read_pixels(tmp_path / name, about.pixels), expected)


def test_deep_png_with_alpha_and_any_filter(tmp_path: Path, scene: np.ndarray) -> None:
    """As torchvision's libpng decodes it, which is not given damaged files: it may end the process."""
    from imagecodecs import png_encode
    from torchvision.io import ImageReadMode, decode_png

    for channels, filters in itertools.product((2, 3, 4), (8, 16, 32, 64, 128)):
        content = png_encode(scene[..., :channels].copy(), filter=filters)
        whole = decode_png(torch.frombuffer(bytearray(content), dtype=torch.uint8), ImageReadMode.UNCHANGED)
        expected = whole.permute(1, 2, 0).numpy().astype(np.uint16)
        expected = over_white(expected) if channels != 3 else expected
        (tmp_path / "a.png").write_bytes(content)
        assert np.array_equal(read_pixels(tmp_path / "a.png", examine(tmp_path / "a.png").pixels), expected)


def test_deep_png_is_upright(tmp_path: Path, scene: np.ndarray) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(scene[..., 0].copy()).save(tmp_path / "a.png", exif=exif)
    about = examine(tmp_path / "a.png")
    assert about.size == (80, 96)
    assert np.array_equal(read_pixels(tmp_path / "a.png", about.pixels)[..., 0], np.rot90(scene[..., 0], -1))


def test_dicom_shows_what_its_window_shows(tmp_path: Path) -> None:
    values = np.arange(4096).reshape(64, 64)
    save_dicom(tmp_path / "ct", values, RescaleSlope=1, RescaleIntercept=-1024, WindowCenter=40, WindowWidth=400)
    about = examine(tmp_path / "ct")
    assert about.pixels == PixelFormat(1, "uint16", DEEP["uint16"])
    shares = read_pixels(tmp_path / "ct", about.pixels)[..., 0] / 65535
    units = values - 1024
    assert (shares[units <= -161] == 0).all()
    assert (shares[units >= 240] == 1).all()
    assert np.allclose(shares[units == 40], 0.5, atol=2e-3)
    save_dicom(tmp_path / "x.dcm", values, PhotometricInterpretation="MONOCHROME1")  # no window: all of its 12 bits
    inverted = read_pixels(tmp_path / "x.dcm", about.pixels)[..., 0]
    assert (inverted[0, 0], inverted[-1, -1]) == (65535, 0)


def test_a_dicom_window_of_width_1_is_a_threshold(tmp_path: Path) -> None:
    values = np.arange(4096).reshape(64, 64)
    save_dicom(tmp_path / "a.dcm", values, WindowCenter=1000.5, WindowWidth=1)
    shown = read_pixels(tmp_path / "a.dcm", examine(tmp_path / "a.dcm").pixels)[..., 0]
    assert np.array_equal(shown, np.where(values > 1000, 65535, 0))


@pytest.mark.parametrize("bits", [8, 16])
def test_dicom_with_a_palette_is_a_picture(tmp_path: Path, bits: int) -> None:
    values, table = np.arange(64 * 64).reshape(64, 64) % 256, np.arange(256)
    colors = np.stack([table, 255 - table, table // 2], 1)
    palette = {"PhotometricInterpretation": "PALETTE COLOR"}
    for name, column in zip(("Red", "Green", "Blue"), colors.T, strict=True):
        entries = column.astype(np.uint8) if bits == 8 else (column << 8 | 7).astype("<u2")
        palette[f"{name}PaletteColorLookupTableDescriptor"] = [256, 0, bits]
        palette[f"{name}PaletteColorLookupTableData"] = entries.tobytes()
    save_dicom(tmp_path / "a.dcm", values, **palette)
    about = examine(tmp_path / "a.dcm")
    assert about.pixels.is_picture
    assert np.array_equal(read_pixels(tmp_path / "a.dcm", about.pixels), colors[values])


@pytest.mark.parametrize("from_element", ["the file's", "the image's", "the image's, without types"])
def test_dicom_without_its_first_132_bytes(tmp_path: Path, from_element: str) -> None:
    values = np.arange(4096).reshape(64, 64)
    save_dicom(tmp_path / "a.dcm", values, WindowCenter=40, WindowWidth=400, SOPClassUID=SecondaryCaptureImageStorage)
    whole = tmp_path / "a.dcm"
    expected = read_pixels(whole, examine(whole).pixels)
    if from_element == "the file's":
        content = whole.read_bytes()[132:]
    else:
        buffer = io.BytesIO()
        bare = pydicom.dcmread(whole)
        del bare.file_meta
        implicit = "without" in from_element
        pydicom.dcmwrite(buffer, bare, implicit_vr=implicit, little_endian=True, enforce_file_format=False)
        content = buffer.getvalue()
        content = content[132:] if content[128:132] == b"DICM" else content
    (tmp_path / "old").mkdir()
    (tmp_path / "old/IM0001").write_bytes(content)
    images = open_data(str(tmp_path / "old")).train
    assert np.array_equal(images.array(0), expected)


def test_pictures_by_their_less_known_suffixes(tmp_path: Path, photos: Tensor) -> None:
    picture = Image.fromarray(photos[0].permute(1, 2, 0).numpy())
    for name in ("a.jfif", "b.jpe", "c.PPM"):
        picture.save(tmp_path / name, "PPM" if name.endswith("PPM") else "JPEG")
    picture.convert("L").save(tmp_path / "d.pgm")
    images = open_data(str(tmp_path)).train
    assert [path.name for path in images.paths] == ["a.jfif", "b.jpe", "c.PPM", "d.pgm"]
    assert np.array_equal(images.array(2), np.asarray(picture))


def test_a_file_that_cannot_be_decoded_is_said_once_in_a_run(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_tmp / "d").mkdir()
    for i in range(9):
        np.save(in_tmp / f"d/{i}.npy", np.random.default_rng(i).random((70, 70, 2), np.float32))
    np.save(in_tmp / "d/4.npy", np.full((70, 70, 2), np.nan, np.float32))
    main(["pretrain", "--data", "d", "--objective", "simsiam+rotation", "--encoder", "tiny", "--epochs", "1", "--out",
          "run", "--batch-size", "4", "--image-size", "32", "--device", "cpu", "--workers", "0"])  # fmt: skip
    assert capsys.readouterr().err.count("left out, cannot be decoded") == 1


def test_arrays_as_files(tmp_path: Path, scene: np.ndarray) -> None:
    np.save(tmp_path / "last.npy", scene)
    np.save(tmp_path / "first.npy", np.moveaxis(scene, 2, 0))
    for name in ("last.npy", "first.npy"):
        about = examine(tmp_path / name)
        assert (about.size, about.pixels.channels) == ((96, 80), 5)
        assert np.array_equal(read_pixels(tmp_path / name, about.pixels), scene)


def test_pictures_of_modern_formats(tmp_path: Path, photos: Tensor) -> None:
    pytest.importorskip("pillow_heif").register_heif_opener()
    picture = Image.fromarray(photos[0].permute(1, 2, 0).numpy())
    for suffix in ("gif", "avif", "heif", "tif"):
        picture.save(tmp_path / f"a.{suffix}")
    picture.save(tmp_path / "IM0001", "JPEG")  # its content decides
    (tmp_path / "README").write_text("no image")
    images = open_data(str(tmp_path)).train
    assert sorted(path.name for path in images.paths) == ["IM0001", "a.avif", "a.gif", "a.heif", "a.tif"]
    assert images.pixel_format.is_picture
    close = torch.from_numpy(np.asarray(picture)).permute(2, 0, 1)[None] / 255
    for row in range(5):
        whole = torch.from_numpy(np.array(images.image(row))).permute(2, 0, 1) / 255
        assert (whole - close).abs().mean() < 0.05


def test_folder_zip_and_pack_give_the_same_crops(tmp_path: Path, scene: np.ndarray) -> None:
    folder = tmp_path / "scenes"
    folder.mkdir()
    values = scene.astype(np.float32) / 1000 - 5
    for i in range(4):
        tifffile.imwrite(
            folder / f"{i}.tif", np.roll(values, 9 * i, 0), photometric="minisblack", planarconfig="contig"
        )
    images = open_data(str(folder)).train
    assert isinstance(images, FolderImages)
    assert images.pixel_format == PixelFormat(5, "float32", (float(values.min()), float(values.max())))
    expected = crops(images)
    assert expected.shape == (4, 5, 32, 32)
    assert 0 <= float(expected.min()) < 0.1 < 0.9 < float(expected.max()) <= 1
    packed = effssl.pack(folder, short_side=0, workers=0)
    from_pack = open_data(str(packed)).train
    assert from_pack.pixel_format == images.pixel_format
    assert (crops(from_pack) - expected).abs().max() < 1e-5
    assert np.array_equal(from_pack.array(2), images.array(2))
    import zipfile

    with zipfile.ZipFile(tmp_path / "scenes.zip", "w") as archive:
        for path in sorted(folder.iterdir()):
            archive.write(path, path.name)
    assert torch.equal(crops(open_data(str(tmp_path / "scenes.zip")).train), expected)
    small = open_data(str(effssl.pack(folder, tmp_path / "small.pack", short_side=40, workers=0))).train
    assert small.sizes.tolist() == [[48, 40]] * 4
    assert (crops(small) - expected).abs().mean() < 0.02
    assert images.image(0).mode == "RGB"  # false color


def test_one_channel_is_read_as_three_where_those_are_wanted(tmp_path: Path, scene: np.ndarray) -> None:
    Image.fromarray(scene[..., 0].copy()).save(tmp_path / "a.png")
    gray = open_data(str(tmp_path)).train
    three = crops(gray, PixelFormat())
    assert three.shape == (1, 3, 32, 32)
    assert torch.equal(three[:, 2:], crops(gray))
    with pytest.raises(RequestError, match="1 channel of uint16, and the encoder takes 5 channels of uint16"):
        crops(gray, PixelFormat(5, "uint16", DEEP["uint16"]))


def write_one(path: Path, rgb: np.ndarray) -> None:
    """A photograph H×W×3 in the format of a suffix."""
    deep = rgb.astype(np.uint16) * 200
    if path.suffix == ".tif":
        tifffile.imwrite(path, np.concatenate([deep, deep[..., :2] // 3], 2), photometric="minisblack",
                         planarconfig="contig")  # fmt: skip
    elif path.suffix == ".png":
        Image.fromarray(deep[..., 0].copy()).save(path)
    elif path.suffix == ".dcm":
        save_dicom(path, rgb[..., 0].astype(np.uint16) * 16)
    elif path.suffix == ".npy":
        np.save(path, np.moveaxis(rgb, 2, 0)[:2].astype(np.float32) / 100 - 1)
    else:
        Image.fromarray(rgb).save(path)


@pytest.mark.parametrize("suffix", [".tif", ".png", ".dcm", ".npy", ".gif", ".avif", ".heif"])
def test_every_format_trains_packs_embeds_and_evaluates(in_tmp: Path, photos: Tensor, suffix: str) -> None:
    if suffix == ".heif":
        pytest.importorskip("pillow_heif").register_heif_opener()
    for i in range(20):
        folder = in_tmp / "d" / ("train" if i < 12 else "test") / ("sky", "roof")[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        write_one(folder / f"{i}{suffix}", photos[3 * i].permute(1, 2, 0).numpy())
    quick = {"epochs": 1, "batch_size": 4, "image_size": 32, "workers": 0, "quiet": True, "encoder": "tiny"}
    run = effssl.pretrain("d", "simsiam+rotation", out="run", cache="kept", **quick)
    assert run.config.augment.pixels.channels == {".tif": 5, ".png": 1, ".dcm": 1, ".npy": 2}.get(suffix, 3)
    assert 0 <= run.knn(k=2).value <= 100
    assert len(effssl.embed("run", "d", "features.npz", workers=0).names) == 20
    packed = str(effssl.pack("d", workers=0))
    assert 0 <= run.evaluate("knn", packed, k=2).value <= 100
    assert open_data(packed).train.labels.tolist() == open_data("d").train.labels.tolist()
    longer = effssl.pretrain("d", "simsiam+rotation", out="run", resume="auto", **(quick | {"epochs": 2}))
    assert longer.finished


# ---------------------------------------------------------------------------------------------------------------
# What cannot be used is refused in one line


def refused(capsys: pytest.CaptureFixture[str], folder: Path) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["pretrain", "--data", str(folder), "--epochs", "1"])
    assert stop.value.code == 2
    said = capsys.readouterr().err.strip()
    assert "Traceback" not in said
    return said.splitlines()[-1]


def test_mixed_channels_name_the_files(
    in_tmp: Path, scene: np.ndarray, capsys: pytest.CaptureFixture[str], photos: Tensor
) -> None:
    (in_tmp / "d").mkdir()
    tifffile.imwrite(in_tmp / "d/five.tif", scene, photometric="minisblack", planarconfig="contig")
    tifffile.imwrite(in_tmp / "d/two.tif", scene[..., :2], photometric="minisblack", planarconfig="contig")
    Image.fromarray(photos[0].permute(1, 2, 0).numpy()).save(in_tmp / "d/photo.jpg")
    said = refused(capsys, in_tmp / "d")
    for part in ("5 channels of uint16 in 1, e.g.", "five.tif", "two.tif", "RGB of 8 bits in 1", "photo.jpg"):
        assert part in said


def test_values_that_are_not_finite(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_tmp / "d").mkdir()
    np.save(in_tmp / "d/a.npy", np.full((80, 80, 2), np.nan, np.float32))
    assert "not finite" in refused(capsys, in_tmp / "d")
    np.save(in_tmp / "stack.npy", np.full((4, 8, 8, 2), np.inf))
    assert "stack.npy has values that are not finite" in refused(capsys, in_tmp / "stack.npy")


def test_dicom_without_pixels(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_tmp / "d").mkdir()
    save_dicom(in_tmp / "d/a.dcm", np.zeros((70, 70)))
    bare = pydicom.dcmread(in_tmp / "d/a.dcm")
    del bare.PixelData
    bare.save_as(in_tmp / "d/a.dcm")
    assert "it is a DICOM file without pixels" in refused(capsys, in_tmp / "d")


def test_too_many_pages(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = io.BytesIO()
    tifffile.imwrite(content, np.zeros((40, 70, 70), np.uint16), photometric="minisblack")
    (in_tmp / "d").mkdir()
    (in_tmp / "d/a.tif").write_bytes(content.getvalue())
    assert "it has 40 channels or pages; images have up to 32" in refused(capsys, in_tmp / "d")
