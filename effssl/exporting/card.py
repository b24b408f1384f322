"""The model card: how to load an exported file, its preprocessing, its training and its scores."""

from __future__ import annotations

from typing import Any

from effssl.augment.pixel_format import PixelFormat
from effssl.exporting.exported_file import Exportable, ExportedFile
from effssl.exporting.inputs import open_code
from effssl.network.loaded import LoadedEncoder
from effssl.run import RunFolder
from effssl.runtime.private_paths import strip_constant, strip_score_name
from effssl.runtime.versions import versions


def model_card(source: Exportable, exported: ExportedFile, file: str, to: str, run: RunFolder | None) -> str:
    """The model card of an exported encoder, in Markdown."""
    loaded, about = source.loaded, source.loaded.about
    parts = [
        f"# {file}\n",
        f"An image encoder, {about['encoder']}, {loaded.dim} features per image, for {to}. "
        f"Exported by effssl {versions()['effssl']}; "
        f"fingerprint of the weights {loaded.fingerprint()}. {exported.checked}\n",
        "## How to use it\n",
        f"```python\n{_code(loaded, exported)}\n```\n",
        f"The encoder takes {exported.takes}.\n",
        *_classes(source),
        *_test(exported),
        "## Preprocessing\n",
        _table(_preprocessing(loaded, exported)),
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


def _preprocessing(loaded: LoadedEncoder, exported: ExportedFile) -> dict[str, str]:
    size = loaded.size
    resized, normalized = (_where(part) for part in (exported.resizes, exported.normalizes))
    return {
        f"crop ({resized})": f"the center square, {100 * loaded.share:.4g} % of the shorter side",
        f"size ({resized})": f"{size}×{size}",
        f"filter ({resized})": f"{loaded.filter}, antialiased, as PIL's",
        "values": _values(loaded.pixels, exported.resizes),
        f"mean ({normalized})": _numbers(loaded.about["mean"]),
        f"standard deviation ({normalized})": _numbers(loaded.about["std"]),
    }


def _values(pixels: PixelFormat, resized: bool) -> str:
    if pixels.is_picture:
        return "RGB, 0 to 255" if resized else "RGB, 0 to 1"
    low, high = pixels.range
    return f"{pixels}, of which {low:g} and {high:g} become 0 and 1"


def _where(inside: bool) -> str:
    return "inside the file" if inside else "before the encoder"


def _code(loaded: LoadedEncoder, exported: ExportedFile) -> str:
    """Python code from an image file to its features, imports first."""
    lines = [*exported.code, *open_code(loaded), *exported.pixels, *exported.features]
    imports = sorted({line for line in lines if line.startswith(("import ", "from "))}, key=lambda x: x.split()[1])
    return "\n".join([*imports, "", *(line for line in lines if line not in imports)])


def _classes(source: Exportable) -> list[str]:
    """The classes of the second output, and how good they are expected to be."""
    classifier = source.classifier
    if classifier is None:
        return []
    expected = classifier.expected
    return [
        "## Classes\n",
        f"`probabilities` has a column for each class, in this order: {', '.join(classifier.classes)}. "
        f"Classifier: {classifier.name}, trained on {expected.images} labelled images; expected accuracy "
        f"{expected.accuracy:.1f} % (95 %: {expected.low:.1f} to {expected.high:.1f} %), "
        f"chance {expected.chance:.1f} %, for images like the labelled ones.\n",
    ]


def _test(exported: ExportedFile) -> list[str]:
    """Code that says whether the file gives the features of effssl, whatever runs it."""
    if not exported.test:
        return []
    code = "\n".join(exported.test)
    return [
        "## Test\n",
        f"After the code above: an image made of numbers has these features.\n\n```python\n{code}\n```\n",
    ]


def _training(about: dict[str, Any], run: RunFolder | None) -> dict[str, str]:
    rows = {"encoder": about["encoder"]}
    for key in ("objective", "data", "epochs", "seed"):
        if key in about:
            rows[key] = str(about[key])
    if "checkpoint" in about:
        rows["epochs"] = f"{about['checkpoint']}: the run was not finished"
    if "start_from" in about:
        rows["started from"] = f"{about['start_from']}, digest {about['start_digest']}"
    if "teacher" in about:
        rows["teacher"] = f"{about['teacher']}, digest {about['teacher_digest']}"
    if "weights" in about:
        rows["weights"] = {"default": "the pretrained ones of its library", "random": "random, not trained"}.get(
            about["weights"], f"from {about['weights']}; their training is unknown"
        )
    if run is not None:
        rows["versions"] = ", ".join(f"{name} {number}" for name, number in run.versions.items())
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
