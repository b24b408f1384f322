"""A run is a folder; every command takes one and nobody handles checkpoint keys.

config.yaml          everything the run was told, with versions
metrics.jsonl        one line per epoch, and per look at the representation's health
checkpoint.pt        where to go on (checkpoint.previous.pt: the one before)
encoder.safetensors  the trained encoder with its preprocessing
results.json         scores, each with its protocol
report.html          all of it to look at
images.npz           of a folder of images, which ones it is trained on (unreadable.txt: which ones it is not)
lock                 which process trains here, or did last
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from effssl.config import Config, build, config_type, read_yaml, to_dict, written_by
from effssl.runtime.errors import RequestError
from effssl.runtime.files import check_room, locked, whole_path, write_atomically

if TYPE_CHECKING:
    from torch import nn

    from effssl.data import Data
    from effssl.evaluation import Score
    from effssl.network.loaded import LoadedEncoder

OWN = (
    "config.yaml", "metrics.jsonl", "checkpoint.pt", "checkpoint.previous.pt", "encoder.safetensors", "results.json",
    "report.html", "images.npz", "unreadable.txt", "lock", "results.lock", "tensorboard",
)  # fmt: skip
"""Names of files in a run's folder."""
WAIT = 60.0  # seconds for another process to add its score


class Run:
    """A pretraining run on disk.

    `run.knn()` and `run.linear()` evaluate its encoder, `run.encoder()` gives it to you.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise RequestError(f"no run folder at {self.folder}")
        if not self.config_path.is_file():
            raise RequestError(f"{self.folder} is not a run folder (it has no config.yaml)")

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @classmethod
    def create(cls, folder: str | Path, config: Config) -> Run:
        """Make a new run folder."""
        folder = Path(folder)
        values = to_dict(config) | {"versions": versions()}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / "config.yaml", yaml.safe_dump(values, sort_keys=False), new=True)
        except OSError as error:
            raise RequestError(f"the run folder {folder} cannot be made: {error.strerror}") from None
        return cls(folder)

    config_path = property(lambda self: self.folder / "config.yaml")
    metrics_path = property(lambda self: self.folder / "metrics.jsonl")
    checkpoint_path = property(lambda self: self.folder / "checkpoint.pt")
    encoder_path = property(lambda self: self.folder / "encoder.safetensors")
    results_path = property(lambda self: self.folder / "results.json")

    @property
    def config(self) -> Config:
        """What the run was told, complete."""
        values = read_yaml(self.config_path)
        source = f"{self.config_path}{written_by(values)}"
        kind, words = config_type(), re.findall(r"\w+", str(values.get("objective")))
        known = {item.name for item in dataclasses.fields(kind)}
        # A term from outside that is not registered now: its options are not needed to use the encoder.
        values = {key: value for key, value in values.items() if key in known or key not in words}
        return build(kind, values, source)

    @property
    def finished(self) -> bool:
        """Whether training reached its end."""
        return self.encoder_path.is_file()

    def metrics(self) -> list[dict[str, Any]]:
        """All logged lines, in order."""
        if not self.metrics_path.exists():
            return []
        lines = self.metrics_path.read_text().splitlines(keepends=True)
        # A run that was killed while writing may leave half a line at the end.
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def locked(self) -> AbstractContextManager[None]:
        """Hold the run's lock: two processes that train into one folder would destroy each other's work."""
        return locked(self.folder / "lock", f"the run {self.folder} is being trained", "choose another --out")

    def begun_by_this_job(self) -> bool:
        """Whether the process that started this one, torchrun, also started the one that trained here before."""
        lock = self.folder / "lock"
        return lock.is_file() and lock.read_text().strip().endswith(f"on {platform.node()}, started by {os.getppid()}")

    def log(self, record: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        with self.metrics_path.open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())  # a checkpoint that follows must not be safer than the lines before it

    def keep_metrics_until(self, epoch: int) -> None:
        """Drop lines of epochs that a resumed run will do again."""
        kept = [line for line in self.metrics() if line["epoch"] <= epoch]
        write_atomically(self.metrics_path, "".join(json.dumps(line) + "\n" for line in kept))

    def results(self) -> dict[str, Any]:
        """All scores so far, by the name of their evaluation; what is not a score is left out."""
        return {name: score for name, score in self._stored().items() if is_score(score)}

    def _stored(self) -> dict[str, Any]:
        """All that results.json holds."""
        try:
            found = json.loads(self.results_path.read_text()) if self.results_path.exists() else {}
        except (OSError, ValueError) as error:
            raise RequestError(f"{self.results_path} cannot be read: {error}") from None
        if not isinstance(found, dict):
            raise RequestError(f"{self.results_path} does not hold scores by their names")
        return found

    def _adding(self) -> AbstractContextManager[None]:
        """Hold the lock of results.json: of two processes that add a score, none loses the other's."""
        lock, busy = self.folder / "results.lock", f"scores of {self.folder} are being written"
        return locked(lock, busy, "measure again later", WAIT)

    def data(self) -> Data:
        """The data set the run was trained on."""
        from effssl.data import open_data

        config = self.config
        return open_data(config.data, config.labels, config.subset, config.classes)

    def encoder(self, projector: bool = False) -> LoadedEncoder:
        """The trained encoder, frozen, with its preprocessing; if asked, with the projector g of its checkpoint."""
        from effssl.network.loaded import load_encoder

        if not self.finished:
            raise RequestError(f"the run {self.folder} is not finished; go on with --resume auto")
        encoder = load_encoder(self.encoder_path)
        if projector and self.config.projector.layers:
            encoder.projector = self._projector()
        return encoder

    def _projector(self) -> nn.Module | None:
        from effssl.network import build_network
        from effssl.training.checkpoint import load_checkpoint

        state = load_checkpoint(self.checkpoint_path)
        if state is None:
            return None
        g, prefix = build_network(self.config).projector, "network.projector."
        weights = state["objective"]
        g.load_state_dict({key.removeprefix(prefix): weights[key] for key in weights if key.startswith(prefix)})
        return g.requires_grad_(False).eval()

    def classifier(self) -> nn.Linear:
        """The linear layer that a run with the supervised term trained on its features."""
        from torch import nn

        from effssl.training.checkpoint import load_checkpoint

        state = load_checkpoint(self.checkpoint_path)
        weights = {} if state is None else state["objective"]
        if "terms.supervised.classifier.weight" not in weights:
            raise RequestError(f"{self.folder} was not trained with the supervised term")
        weight = weights["terms.supervised.classifier.weight"]
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight.data, layer.bias.data = weight, weights["terms.supervised.classifier.bias"]
        return layer.requires_grad_(False)

    def report(self, out: str | Path | None = None, images: int = 1000) -> Path:
        """Draw the run as one HTML file, by default `report.html` in its folder."""
        from effssl.report import write_report

        return write_report(self.folder, out, images=images)

    def knn(self, **settings: Any) -> Score:
        """k-nearest-neighbor accuracy of the encoder on the test images."""
        return self.evaluate("knn", **settings)

    def linear(self, **settings: Any) -> Score:
        """Accuracy of a linear layer trained on the frozen encoder."""
        return self.evaluate("linear", **settings)

    def evaluate(
        self, what: str, data: str | None = None, device: str = "auto", classes: str = "", **settings: Any
    ) -> Score:
        """Evaluate the encoder by a protocol of `effssl.evaluation.options` and add the score to results.json."""
        from effssl.data import NAMED
        from effssl.evaluation import changed_options, evaluate, open_source
        from effssl.report import refresh
        from effssl.runtime.device import pick_device

        changed = changed_options(what, settings)  # also refuses what is not known, before anything slow
        changed += [f"classes={whole_path(classes)}"] if classes else []
        check_room(self.folder)  # a score is added to results.json
        with self._adding():
            self._stored()  # what will not work is said before anything slow
        source = open_source(what, settings, data, self, classes)
        encoder = self.encoder(projector=what.startswith("probe")).to(pick_device(device))
        score = evaluate(what, encoder, source, **settings)
        # Measured with other constants or on other data, it is another score: all stay.
        on = "" if data is None else f"@{data if data in NAMED else whole_path(data)}"
        with self._adding():
            results = self._stored() | {" ".join([what + on, *changed]): score.record()}
            write_atomically(self.results_path, json.dumps(results, indent=2) + "\n")
            refresh(self)
        return score


def is_score(found: Any) -> bool:
    """Whether something read from JSON is a score, as `Score.record` gives it."""
    kinds: dict[str, Any] = {"value": (int, float), "protocol": str, "metric": str, "constants": dict}
    if not isinstance(found, dict) or not all(isinstance(found.get(key), kind) for key, kind in kinds.items()):
        return False
    return math.isfinite(found["value"]) and isinstance(found.get("source", {}), dict)


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for name in ("effssl", "torch", "torchvision", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def load(source: str | Path, encoder: str = "", weights: str = "default", image_size: int = 0) -> LoadedEncoder:
    """An encoder ready for `encoder(images)`: of a run folder, of a weight file, or a torchvision or `timm:` name.

    `encoder` names the architecture of a file that does not say so itself; `weights` of an encoder given by name are
    its library's pretrained ones ("default") or "random".
    """
    from effssl.network.foreign import open_foreign, refuse_flags

    path = Path(source).expanduser()
    if path.is_dir():
        refuse_flags(str(source), encoder, weights, image_size)
        return Run(path).encoder()
    return open_foreign(str(source), encoder, weights, image_size)
