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
    from effssl.errors import RequestError, RunFailed, Stopped
    from effssl.evaluation import Score, evaluate
    from effssl.explore.curating import duplicates, outliers, subset
    from effssl.explore.embedding import embed
    from effssl.explore.feature_files import read_features
    from effssl.explore.features_transformer import Features
    from effssl.explore.searching import neighbors
    from effssl.exporting import export
    from effssl.importing import import_encoder
    from effssl.objectives.options import register
    from effssl.own_loop import objective, view_loader
    from effssl.pretraining import pretrain
    from effssl.report import write_report
    from effssl.run import Run, load

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
    "pretrain": "effssl.pretraining",
    "Run": "effssl.run",
    "load": "effssl.run",
    "evaluate": "effssl.evaluation",
    "Score": "effssl.evaluation",
    "export": "effssl.exporting",
    "import_encoder": "effssl.importing",
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
    "objective": "effssl.own_loop",
    "view_loader": "effssl.own_loop",
    "write_report": "effssl.report",
    "RequestError": "effssl.errors",
    "RunFailed": "effssl.errors",
    "Stopped": "effssl.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'effssl' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
