"""The model card: how to load an exported file, its preprocessing, its training and its scores."""

from __future__ import annotations

from typing import Any

from effssl.augment.pixel_format import PixelFormat
from effssl.exporting.exported_file import ExportedFile
from effssl.network.loaded import LoadedEncoder
from effssl.run import RunFolder
from effssl.runtime.private_paths import strip_constant, strip_score_name
from effssl.runtime.versions import versions
from effssl.schema import read_yaml


def model_card(loaded: LoadedEncoder, exported: ExportedFile, file: str, to: str, run: RunFolder | None) -> str:
    """The model card of an exported encoder, in Markdown."""
    about, size = loaded.about, loaded.size
    kind = "float32 images in [0, 1]" if exported.normalizes else "normalized images"
    channels = loaded.pixels.channels
    takes = f"{kind}, N×{channels}×{size}×{size}"
    if to == "safetensors":
        of = "uint8 or float in [0, 1]" if loaded.pixels.is_picture else _values(loaded.pixels)
        takes = f"images N×{channels}×H×W of any size, {of}; it crops, resizes and normalizes them"
    parts = [
        f"# {file}\n",
        f"An image encoder, {about['encoder']}, {loaded.dim} features per image, for {to}. "
        f"Exported by effssl {versions()['effssl']}; "
        f"fingerprint of the weights {loaded.fingerprint()}. {exported.checked}\n",
        "## How to use it\n",
        f"```python\n{_code(loaded, exported, to)}\n```\n",
        f"The encoder takes {takes}.\n",
        "## Preprocessing\n",
        _table(_preprocessing(loaded, exported.normalizes)),
        "## Training\n",
        _table(_training(about, run)),
        "## Scores\n",
        _scores(run),
        "## License\n",
        "License of the training data: unknown.\n",
    ]
    return "\n".join(parts)


def _table(rows: dict[str, str]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]) + "\n"


def _preprocessing(loaded: LoadedEncoder, inside: bool) -> dict[str, str]:
    size, where = loaded.size, "inside the file" if inside else "before the encoder"
    return {
        "crop": f"the center square, {100 * loaded.share:.4g} % of the shorter side",
        "size": f"{size}×{size}",
        "filter": f"{loaded.filter}, antialiased",
        "values": "RGB, 0 to 1" if loaded.pixels.is_picture else _values(loaded.pixels),
        f"mean ({where})": _numbers(loaded.about["mean"]),
        f"standard deviation ({where})": _numbers(loaded.about["std"]),
    }


def _values(pixels: PixelFormat) -> str:
    low, high = pixels.range
    return f"{pixels}, of which {low:g} and {high:g} become 0 and 1"


def _code_for_arrays(loaded: LoadedEncoder, exported: ExportedFile, to: str) -> list[str]:
    """Python code from an array of other pixels than those of pictures to its features."""
    low, high = loaded.pixels.range
    if to == "safetensors":
        shape = f"1, {loaded.pixels.channels}, 64, 64"
        return [f"images = torch.zeros({shape})  # your images, of any size", "features = model(images)"]
    shape = f"(1, {loaded.pixels.channels}, {loaded.size}, {loaded.size})"
    lines = [f"images = numpy.zeros({shape}, numpy.float32)  # your images, cropped and resized"]
    lines.append(f"images = (images - {low:g}) / {high - low:g}")
    if not exported.normalizes:
        mean, std = (f"numpy.reshape({list(loaded.about[key])}, (-1, 1, 1))" for key in ("mean", "std"))
        lines.append(f"images = (images - {mean}) / {std}")
    if to == "onnx":
        return [*lines, 'features = session.run(None, {"images": images.astype(numpy.float32)})[0]']
    return [*lines, "with torch.inference_mode():", "    features = model(torch.from_numpy(images).float())"]


def _code(loaded: LoadedEncoder, exported: ExportedFile, to: str) -> str:
    """Python code from an image file, or an array, to its features."""
    if not loaded.pixels.is_picture:
        needed = ["import torch"] if to != "onnx" else []
        needed += ["import numpy"] if to != "safetensors" else []
        lines = [*dict.fromkeys([*needed, *exported.code, *_code_for_arrays(loaded, exported, to)])]
        return _imports_first(lines)
    lines = [*exported.code, "from PIL import Image" + ("" if to == "safetensors" else ", ImageOps")]
    if to == "safetensors":
        lines.append('features = model.embed([Image.open("photo.jpg")])')
    elif to == "onnx":  # without torch, which its users may not have installed
        size, cut = loaded.size, (1 - loaded.share) / 2  # share removed at each side
        lines += [
            "import numpy",
            'image = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("RGB")',
            f"image = ImageOps.fit(image, ({size}, {size}), Image.Resampling.{loaded.filter.upper()}, bleed={cut:g})",
            "images = numpy.asarray(image, numpy.float32).transpose(2, 0, 1)[None] / 255",
            'features = session.run(None, {"images": images})[0]',
        ]
    else:
        lines += [
            *_transform(loaded, to),
            'images = transform(ImageOps.exif_transpose(Image.open("photo.jpg")).convert("RGB"))[None]',
            "with torch.inference_mode():",
            "    features = model(images)",
        ]
    return _imports_first(lines)


def _imports_first(lines: list[str]) -> str:
    imports = sorted(
        (line for line in lines if line.startswith(("import ", "from "))), key=lambda line: line.split()[1]
    )
    return "\n".join([*imports, "", *(line for line in lines if line not in imports)])


def _transform(loaded: LoadedEncoder, to: str) -> list[str]:
    if to == "timm":
        return ["transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))"]
    size, resize = loaded.size, round(loaded.size / loaded.share)
    steps = [
        "v2.ToImage()",
        f"v2.Resize({resize}, v2.InterpolationMode.{loaded.filter.upper()})",
        f"v2.CenterCrop({size})",
        "v2.ToDtype(torch.float32, scale=True)",
    ]
    if to == "torchvision":
        steps.append(f"v2.Normalize({list(loaded.about['mean'])}, {list(loaded.about['std'])})")
    return ["from torchvision.transforms import v2", "transform = v2.Compose([", *(f"    {s}," for s in steps), "])"]


def _training(about: dict[str, Any], run: RunFolder | None) -> dict[str, str]:
    rows = {"encoder": about["encoder"]}
    for key in ("objective", "data", "epochs", "seed"):
        if key in about:
            rows[key] = str(about[key])
    if "checkpoint" in about:
        rows["epochs"] = f"{about['checkpoint']}: the run was not finished"
    if "start_from" in about:
        rows["started from"] = f"{about['start_from']}, digest {about['start_digest']}"
    if "weights" in about:
        rows["weights"] = {"default": "the pretrained ones of its library", "random": "random, not trained"}.get(
            about["weights"], f"from {about['weights']}; their training is unknown"
        )
    if run is not None:
        written = read_yaml(run.config_path).get("versions")
        found: dict[str, Any] = written if isinstance(written, dict) else {}
        rows["versions"] = ", ".join(f"{name} {number}" for name, number in found.items())
    return rows


def _scores(run: RunFolder | None) -> str:
    results = run.results() if run is not None else {}
    if not results:
        return "None.\n"
    lines = ["| evaluation | score | metric | on | protocol |", "|---|---|---|---|---|"]
    for name, score in results.items():
        constants = [f"{k} {_short(v)}" for k, v in score["constants"].items() if not isinstance(v, (dict, list))]
        on = score.get("source", {}).get("data", "")
        protocol = "; ".join([str(score["protocol"]), *constants])
        lines.append(f"| {strip_score_name(name)} | {score['value']:.2f} % | {score['metric']} | {on} | {protocol} |")
    return "\n".join(lines) + "\n"


def _numbers(values: Any) -> str:
    return ", ".join(f"{value:.8g}" for value in values)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else strip_constant(str(value))
