"""effssl: efficient self-supervised learning of visual representations.

    run = effssl.pretrain("cifar10", "byol+rotation", epochs=20, out="runs/first")
    run.knn(), run.linear()
    encoder = effssl.load("runs/first")
    features = encoder(images)

torch is imported on first use, so `import effssl` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from effssl.data import open_data
    from effssl.data.pack import pack
    from effssl.evaluation import Score, evaluate
    from effssl.explore.curating import duplicates, outliers, subset
    from effssl.explore.embedding import embed
    from effssl.explore.feature_files import read_features
    from effssl.explore.features_transformer import Features
    from effssl.explore.searching import neighbors
    from effssl.exporting import export
    from effssl.exporting.importing import import_encoder
    from effssl.objectives.options import register
    from effssl.report import write_report
    from effssl.run import Run, load
    from effssl.runtime.errors import RequestError, RunFailed, Stopped
    from effssl.training.custom_loop import objective, view_loader
    from effssl.training.pretraining import pretrain

__version__ = "0.1.0"
__all__ = [
    "Features",
    "RequestError",
    "Run",
    "RunFailed",
    "Score",
    "Stopped",
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
    "pretrain": "effssl.training.pretraining",
    "Run": "effssl.run",
    "load": "effssl.run",
    "evaluate": "effssl.evaluation",
    "Score": "effssl.evaluation",
    "export": "effssl.exporting",
    "import_encoder": "effssl.exporting.importing",
    "open_data": "effssl.data",
    "pack": "effssl.data.pack",
    "embed": "effssl.explore.embedding",
    "read_features": "effssl.explore.feature_files",
    "neighbors": "effssl.explore.searching",
    "duplicates": "effssl.explore.curating",
    "outliers": "effssl.explore.curating",
    "subset": "effssl.explore.curating",
    "Features": "effssl.explore.features_transformer",
    "register": "effssl.objectives.options",
    "objective": "effssl.training.custom_loop",
    "view_loader": "effssl.training.custom_loop",
    "write_report": "effssl.report",
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
