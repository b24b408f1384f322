"""The precisions that figures are measured in on this machine."""

from __future__ import annotations

from functools import cache

from effssl.runtime.processor import avoid_broken_amx, bf16_slowdown


@cache
def fastest() -> str:
    """bf16 where one convolution is faster in it, else float32."""
    avoid_broken_amx()
    return "bf16" if bf16_slowdown() < 1 else "float32"


def precisions() -> list[str]:
    """float32, and bf16 where it is faster."""
    return list(dict.fromkeys(["float32", fastest()]))
