"""How near a step comes to the machine's arithmetic: GFLOPS of the step over GFLOPS of a large matrix product.

Both in float32, and both in bf16 where the processor computes in it.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.augmentation import photo_tiles
from benchmarks.precision import precisions
from benchmarks.timing import interleaved
from effssl.data import ArrayImages, Data
from effssl.recipes import resolve
from effssl.runtime.device import pick_device
from effssl.training.trainer import Trainer

GEMM = 2048
CASES = {
    "small encoder, batch 128": {"recipe": "cpu-byol", "batch_size": 128},
    "small encoder, batch 256": {"recipe": "cpu-byol", "batch_size": 256},
    "ResNet-18 at 32 px, batch 32": {"recipe": "cifar10-byol", "batch_size": 32},
    "ResNet-18 at 32 px, batch 64": {"recipe": "cifar10-byol", "batch_size": 64},
}


DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}


def measure(repeats: int) -> dict[str, dict[str, float]]:
    rows = {}
    for precision in precisions():
        a = torch.randn(GEMM, GEMM, dtype=DTYPES[precision])
        b = a.T.contiguous()
        for name, flags in CASES.items():
            rows[f"{name}, {precision}"] = _measure(flags | {"precision": precision}, repeats, lambda a=a, b=b: a @ b)
    return rows


def _measure(flags: dict, repeats: int, product: Callable[[], object]) -> dict[str, float]:
    plan = resolve({"data": "photos", "objective": "byol", "image_size": 32, "epochs": 1000} | flags)
    pixels = photo_tiles(32, plan.config.batch_size)
    trainer = Trainer(plan, Data("photos", ArrayImages(pixels)), pick_device("cpu"))
    views = next(iter(trainer.loader.epoch(0)))
    with FlopCounterMode(display=False) as counter:
        trainer.step(views)
    work = counter.get_total_flops() / 1e9
    times = interleaved({"step": lambda: trainer.step(views), "product": product}, repeats)
    step, limit = work / median(times["step"]), 2 * GEMM**3 / 1e9 / median(times["product"])
    return {"gflops": step, "gemm_gflops": limit, "share": step / limit, "gflop_per_step": work}
