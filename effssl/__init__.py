"""effssl: efficient self-supervised learning of visual representations.

    run = effssl.pretrain("cifar10", "simclr+rotation", epochs=20, out="runs/first")
    run.knn(), run.linear()
    encoder = effssl.load("runs/first")
    features = encoder(images)

torch is imported on first use, so `import effssl` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from effssl.runtime.versions import EFFSSL

if TYPE_CHECKING:
    from effssl.browsing import browse
    from effssl.data import open_data
    from effssl.data.packing import pack
    from effssl.evaluation import evaluate
    from effssl.evaluation.score import Score
    from effssl.explore.classify import classify
    from effssl.explore.duplicates import duplicates
    from effssl.explore.embedding import embed
    from effssl.explore.feature_extractor import FeatureExtractor
    from effssl.explore.feature_files import read_features
    from effssl.explore.neighbors import neighbors
    from effssl.explore.outliers import outliers
    from effssl.explore.subset import subset
    from effssl.exporting import export
    from effssl.exporting.importing import import_encoder
    from effssl.objectives.options import register
    from effssl.report import write_report
    from effssl.report.inline import Comparison
    from effssl.runtime.errors import RequestError, RunFailed, Stopped
    from effssl.training.custom_loop import objective, view_loader
    from effssl.verbs import Run, load, pretrain

__version__ = EFFSSL
__all__ = [
    "Comparison",
    "FeatureExtractor",
    "RequestError",
    "Run",
    "RunFailed",
    "Score",
    "Stopped",
    "browse",
    "classify",
    "duplicates",
    "embed",
    "evaluate",
    "export",
    "import_encoder",
    "load",
    "neighbors",
    "objective",
    "open_data",
    "outliers",
    "pack",
    "pretrain",
    "read_features",
    "register",
    "subset",
    "view_loader",
    "write_report",
]

_WHERE = {
    "pretrain": "effssl.verbs",
    "Run": "effssl.verbs",
    "load": "effssl.verbs",
    "evaluate": "effssl.evaluation",
    "Score": "effssl.evaluation.score",
    "export": "effssl.exporting",
    "import_encoder": "effssl.exporting.importing",
    "open_data": "effssl.data",
    "pack": "effssl.data.packing",
    "embed": "effssl.explore.embedding",
    "browse": "effssl.browsing",
    "read_features": "effssl.explore.feature_files",
    "neighbors": "effssl.explore.neighbors",
    "duplicates": "effssl.explore.duplicates",
    "outliers": "effssl.explore.outliers",
    "subset": "effssl.explore.subset",
    "classify": "effssl.explore.classify",
    "FeatureExtractor": "effssl.explore.feature_extractor",
    "register": "effssl.objectives.options",
    "objective": "effssl.training.custom_loop",
    "view_loader": "effssl.training.custom_loop",
    "write_report": "effssl.report",
    "Comparison": "effssl.report.inline",
    "RequestError": "effssl.runtime.errors",
    "RunFailed": "effssl.runtime.errors",
    "Stopped": "effssl.runtime.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'effssl' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
