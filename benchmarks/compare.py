"""What got worse than a baseline by more than a tenth; only ratios, which another machine does not change much.

python -m benchmarks.compare benchmarks/baseline.json benchmarks/latest.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TOLERANCE = 0.1
RATIOS = ("ours_is_faster_by", "share", "ratio", "slower_by")  # of all, more is better for us


def worse(baseline: dict[str, Any], latest: dict[str, Any]) -> list[str]:
    """One line per ratio that fell by more than the tolerance; what one side lacks is not compared."""
    lines = []
    for group, rows in baseline.items():
        for name, row in rows.items() if isinstance(rows, dict) else ():
            for key, before in row.items() if isinstance(row, dict) else ():
                now = latest.get(group, {}).get(name, {}).get(key)
                if key in RATIOS and now is not None and now < (1 - TOLERANCE) * before:
                    lines.append(f"worse: {group}, {name}: {key.replace('_', ' ')} {before:.3g} → {now:.3g}")
    return lines


if __name__ == "__main__":
    found = worse(*(json.loads(Path(path).read_text()) for path in sys.argv[1:3]))
    print("\n".join(found) or "nothing got worse by more than 10 %")
    sys.exit(bool(found))
