"""Feature files: complete, bounded in memory, resumed after a kill, never overwritten silently."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from torch import Tensor

import effssl
from effssl import RequestError, RunFailed
from effssl.data.folder import find_images
from effssl.explore.encoder import encoder_digest
from effssl.explore.feature_files import Embedding
from effssl.features.extract import extract
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.files import locked

SMALL = {"weights": "random", "image_size": 16, "workers": 0}


def test_every_readable_image_has_the_features_the_encoder_gives_it(
    embedding: Embedding, encoder: LoadedEncoder, folder: Path
) -> None:
    images = find_images(folder, [])
    expected = extract(encoder, images)
    assert embedding.names == [str(images.paths[row]) for row in expected.rows.tolist()]
    np.testing.assert_allclose(embedding.features, expected.h.numpy(), rtol=1e-5, atol=1e-6)
    assert embedding.labels == [Path(name).parent.name for name in embedding.names]
    assert len(embedding) == 68


def test_images_that_cannot_be_read_are_named(embedding: Embedding, folder: Path) -> None:
    assert embedding.metadata is not None
    assert embedding.metadata.unreadable == [str(folder / "added/broken.jpg"), str(folder / "added/cut off.jpg")]


@pytest.mark.parametrize("suffix", [".parquet", ".npz", ".csv"])
def test_a_file_gives_back_what_was_put_in(
    suffix: str, embedding: Embedding, run: Path, folder: Path, tmp_path: Path
) -> None:
    made = effssl.embed(run, folder, tmp_path / f"features{suffix}", labels="folders", workers=0)
    assert made.names == embedding.names
    assert made.labels == embedding.labels
    assert made.metadata == embedding.metadata
    np.testing.assert_array_equal(made.features, embedding.features)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"features{suffix}"} | ({"features.csv.json"} if suffix == ".csv" else set())


def test_other_tools_read_the_files(embedding: Embedding, run: Path, folder: Path, tmp_path: Path) -> None:
    for suffix in (".parquet", ".npz", ".csv"):
        effssl.embed(run, folder, tmp_path / f"f{suffix}", labels="folders", workers=0)
    table = pq.read_table(tmp_path / "f.parquet")
    assert table.column_names == ["path", "label", "features"]
    np.testing.assert_array_equal(np.stack(table["features"].to_numpy()), embedding.features)
    with np.load(tmp_path / "f.npz") as file:
        assert file["path"].tolist() == embedding.names
        np.testing.assert_array_equal(file["features"], embedding.features)
    with (tmp_path / "f.csv").open() as lines:
        first = next(csv.DictReader(lines))
    assert list(first)[:3] == ["path", "label", "f0"]
    assert np.float32(first["f0"]) == embedding.features[0, 0]


def test_arrays_have_numbers_and_labels(tmp_path: Path) -> None:
    made = effssl.embed("small", "digits", tmp_path / "digits.parquet", **SMALL)
    data = effssl.open_data("digits")
    assert made.names == [str(i) for i in range(1797)]
    assert data.test is not None
    assert data.test.labels is not None
    assert made.label(1437) == str(int(data.test.labels[0]))  # after the training images come those to test on
    assert effssl.neighbors(features=made, query=[5], k=2)[0].query == "5"


def test_small_images_of_one_size_keep_their_paths_and_any_layout_is_complete(
    tiny_photos: Tensor, tmp_path: Path
) -> None:
    places = ["train/a/0.png", "train/b/1.png", "test/a/2.png", "val/b/3.png", "more/4.png", "5.png"]
    for tile, place in zip(tiny_photos, places, strict=False):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(tile.permute(1, 2, 0).numpy()).save(tmp_path / place)
    made = effssl.embed("small", tmp_path, **SMALL)
    labels = {Path(name).name: label for name, label in zip(made.names, made.labels or [], strict=True)}
    assert labels == {"0.png": "a", "1.png": "b", "2.png": "a", "3.png": "b", "4.png": None, "5.png": None}
    with pytest.raises(RequestError, match=r"5\.png is in none of them"):
        effssl.embed("small", tmp_path, labels="folders", **SMALL)
    assert effssl.embed("small", tmp_path, labels="none", **SMALL).labels is None


def killed_halfway(out: Path, *args: str) -> int:
    """Start effssl embed in a process and kill it when some batches are done; how many images are."""
    command = [sys.executable, "-m", "effssl", "embed", *args, "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    rows = Path(f"{out}.part") / "rows.part"
    while not rows.exists() or rows.stat().st_size < 30:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return rows.stat().st_size


def test_killed_it_resumes_to_the_same_bytes(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    killed, whole, data = tmp_path / "killed.npz", tmp_path / "whole.npz", tmp_path / "digits.npz"
    digits = effssl.open_data("digits").train.pixels[:500].numpy()
    np.savez(data, images=digits[:301], test_images=digits[301:])
    done = killed_halfway(killed, "small", "--weights", "random", "--image-size", "16", "--data", str(data),
                          "--batch", "3", "--workers", "0")  # fmt: skip
    assert 30 <= done < 500
    assert not killed.exists()
    with (tmp_path / "killed.npz.part/features.part").open("ab") as file:  # killed while writing a batch
        file.write(b"\x01" * 1001)
    with (tmp_path / "killed.npz.part/rows.part").open("ab") as file:
        file.truncate(done - 2)
    (tmp_path / ".killed.npz.1.partial").write_bytes(b"half of the file")  # killed at its very end
    with pytest.raises(RequestError, match="begun with another encoder, other images or another batch="):
        effssl.embed("small", data, killed, batch=7, **SMALL)
    with pytest.raises(RequestError, match="begun with another encoder"):
        effssl.embed("small", data, killed, batch=3, **SMALL | {"image_size": 8})
    effssl.embed("small", data, killed, batch=3, **SMALL)
    assert "resuming after " in capfd.readouterr().err
    effssl.embed("small", data, whole, batch=3, **SMALL)
    assert killed.read_bytes() == whole.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"killed.npz", "whole.npz", "digits.npz"}


def test_resuming_after_unreadable_images_keeps_names_and_features_together(
    encoder: LoadedEncoder, embedding: Embedding, folder: Path, tmp_path: Path
) -> None:
    out, work = tmp_path / "f.npz", tmp_path / "f.npz.part"
    limited = StopAfter(encoder, 3)
    with pytest.raises(KeyboardInterrupt):
        effssl.embed(limited, folder, out, labels="folders", batch=4, workers=0)
    assert (work / "rows.part").read_bytes() == bytes([1, 1, 0, 1] + 8 * [1])  # "cut off.jpg" is the third
    made = effssl.embed(encoder, folder, out, labels="folders", batch=4, workers=0)
    assert made.names == embedding.names
    np.testing.assert_allclose(made.features, embedding.features, rtol=1e-5, atol=1e-6)


def test_two_at_once_do_not_write_into_each_other(run: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv.json").write_text("mine")
    with pytest.raises(RequestError, match=r"new\.csv\.json exists"):
        effssl.embed(run, folder, tmp_path / "new.csv", workers=0)
    assert (tmp_path / "new.csv.json").read_text() == "mine"
    (tmp_path / "f.npz.part").mkdir()
    with (
        locked(tmp_path / "f.npz.part/lock", "", ""),
        pytest.raises(RequestError, match=r"f\.npz\.part is being written by process"),
    ):
        effssl.embed(run, folder, tmp_path / "f.npz", workers=0)
    assert len(effssl.embed(run, folder, tmp_path / "f.npz", workers=0)) == 68


class StopAfter(LoadedEncoder):
    """The same encoder, whose user presses ctrl-c after some batches."""

    def __init__(self, encoder: LoadedEncoder, batches: int) -> None:
        super().__init__(encoder.encoder, encoder.about)
        self.left = batches
        self.eval()

    def normalized(self, x: Tensor) -> Tensor:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().normalized(x)


def test_a_finished_file_is_left_alone_and_others_are_refused(
    run: Path, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    out = tmp_path / "f.parquet"
    effssl.embed(run, folder, out, workers=0)
    before = out.stat()
    effssl.embed(run, folder, out, workers=0)
    assert "is finished" in capfd.readouterr().err
    assert (out.stat().st_ino, out.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    with pytest.raises(RequestError, match="features of another encoder or other images"):
        effssl.embed("small", folder, out, **SMALL)
    with pytest.raises(RequestError, match="features of another encoder or other images"):
        effssl.embed(run, folder / "china", out, workers=0)
    assert out.stat().st_ino == before.st_ino
    assert len(effssl.embed(run, folder / "china", out, overwrite=True, workers=0)) == 32
    for name in ("mine.csv", "mine.npz", "mine.parquet"):
        (tmp_path / name).write_text("path,f0\nmine,1\n")
        with pytest.raises(RequestError, match="is not from effssl embed"):
            effssl.embed(run, folder, tmp_path / name, workers=0)
        assert (tmp_path / name).read_text() == "path,f0\nmine,1\n"
    effssl.embed(run, folder, tmp_path / "f.csv", workers=0)
    (tmp_path / "f.csv").write_text("path,f0\nmine,1\n")  # its metadata no longer belong to it
    with pytest.raises(RequestError, match="is not from effssl embed"):
        effssl.embed(run, folder, tmp_path / "f.csv", workers=0)
    (tmp_path / "new.csv.json").write_text("mine")
    with pytest.raises(RequestError, match=r"new\.csv\.json exists"):
        effssl.embed(run, folder, tmp_path / "new.csv", workers=0)
    assert (tmp_path / "new.csv.json").read_text() == "mine"
    (tmp_path / "f.npz.part").mkdir()
    (tmp_path / "f.npz.part/notes.txt").write_text("mine")
    with pytest.raises(RequestError, match="holds other files"):
        effssl.embed(run, folder, tmp_path / "f.npz", overwrite=True, workers=0)


def test_features_of_an_image_that_was_replaced_are_not_finished(tmp_path: Path) -> None:
    image, out = tmp_path / "images/a.bmp", tmp_path / "f.npz"
    image.parent.mkdir()
    Image.new("RGB", (16, 16), "white").save(image)
    effssl.embed("small", image.parent, out, **SMALL)
    Image.new("RGB", (16, 16), "black").save(image)  # same name, same size, as many bytes
    with pytest.raises(RequestError, match="images have changed since"):
        effssl.embed("small", image.parent, out, **SMALL)


def test_mistakes_are_reported_in_one_line(
    run: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad").mkdir()
    whole = (folder / "added/cut off.jpg").read_bytes()
    (tmp_path / "bad/0.jpg").write_bytes(whole)
    with pytest.raises(RequestError, match=r"none of the 1 images can be decoded, e\.g\. .*0\.jpg"):
        effssl.embed(run, tmp_path / "bad", workers=0)
    with pytest.raises(RequestError, match=r"feature files end with \.parquet, \.npz, \.csv"):
        effssl.embed(run, folder, tmp_path / "f.txt")
    with pytest.raises(RequestError, match="batch is 0"):
        effssl.embed(run, folder, batch=0)
    with pytest.raises(RequestError, match="needs no image_size="):
        effssl.embed(run, folder, image_size=64)
    with pytest.raises(RequestError, match="no feature file at"):
        effssl.read_features(tmp_path / "none.npz")
    (tmp_path / "other.csv").write_text("path,f0\na.png,1\nb.png\n")
    with pytest.raises(RequestError, match="does not have 2 fields"):
        effssl.read_features(tmp_path / "other.csv")
    np.savez(tmp_path / "other.npz", path=["a"], features=np.zeros((2, 3), np.float32))
    with pytest.raises(RequestError, match="1 names, but features of shape"):
        effssl.read_features(tmp_path / "other.npz")
    for columns, says in [
        ({"path": ["a"], "features": ["text"]}, "no column features of lists of numbers"),
        ({"path": ["a"]}, "no column features of lists of numbers"),
        ({"name": ["a"], "features": [[1.0]]}, "neither a column path nor a column index"),
        ({"path": ["a", "b"], "features": [[1.0], [1.0, 2.0]]}, "different lengths"),
    ]:
        pq.write_table(pa.table(columns), tmp_path / "other.parquet")
        with pytest.raises(RequestError, match=says):
            effssl.read_features(tmp_path / "other.parquet")
    for suffix in (".parquet", ".npz", ".csv"):
        (tmp_path / f"garbage{suffix}").write_bytes(bytes(range(256)) * 8)
        with pytest.raises(RequestError, match="is not a feature file"):
            effssl.read_features(tmp_path / f"garbage{suffix}")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RequestError, match="need pyarrow: pip install pyarrow"):
        effssl.embed(run, folder, tmp_path / "f.parquet")
    assert not list(tmp_path.glob("f.*"))


def test_features_that_are_not_finite_stop_it(encoder: LoadedEncoder, folder: Path) -> None:
    about = encoder.about | {"std": [float("nan")] * 3}
    with pytest.raises(RunFailed, match="not finite"):
        effssl.embed(LoadedEncoder(encoder.encoder, about).eval(), folder, workers=0)


BOUNDED = """
import json, resource, sys
import numpy as np, torch
from torch import nn
import effssl
from effssl.network.encoders import Encoder
from effssl.network.loaded import LoadedEncoder
from effssl.features.knn import nearest

torch.manual_seed(0)
wide = Encoder(nn.Sequential(nn.Flatten(), nn.Linear(192, 4096)), 4096)
encoder = LoadedEncoder(wide, {"image_size": 8, "mean": [0.5] * 3, "std": [0.25] * 3}).requires_grad_(False).eval()
images = np.random.default_rng(0).integers(0, 256, (12000, 8, 8, 3), dtype=np.uint8)
np.save("images.npy", images)
np.save("few.npy", images[:300])
few = effssl.embed(encoder, "few.npy", "few.parquet")  # everything that is loaded once is loaded now
effssl.neighbors(features=few, query=0), effssl.subset(features=few, size=3), effssl.outliers(features=few)

def data():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) << 10

size = 12000 * 4096 * 4
resource.setrlimit(resource.RLIMIT_DATA, (data() + int(size * 0.75), resource.RLIM_INFINITY))
for suffix in ("npz", "parquet"):
    many = effssl.embed(encoder, "images.npy", f"many.{suffix}")
assert effssl.neighbors(features=many, query=7, k=3)[0].found
assert len(effssl.subset(features=many, size=5).names) == 5
try:
    np.array(many.features)
except MemoryError:
    print("all features together would not have fitted:", many.features.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_features_are_never_all_in_memory(tmp_path: Path) -> None:
    environment = os.environ | {"MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert f"would not have fitted: {12000 * 4096 * 4}" in done.stdout


def test_the_digest_covers_preprocessing_as_well_as_weights(encoder: LoadedEncoder) -> None:
    other = encoder.with_transform(0.5, "bicubic")
    assert other.fingerprint() == encoder.fingerprint()
    assert encoder_digest(other) != encoder_digest(encoder)
