"""Puts pages of the repository's root into the site, and turns links to them into links inside the site.

A changelog belongs where people look for it, beside README; links are written as the code-hosting site follows them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

COPIED = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
INSIDE = COPIED | {"README.md": "index.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root; seen from there, the others lie in docs/."""
    root = Path(config.config_file_path).parent
    for name, page in COPIED.items():
        text = (root / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links out of docs/ to a page of the root lead to its copy, from whatever depth."""
    names = "|".join(map(re.escape, INSIDE))
    return re.sub(rf"\]\(((?:\.\./)*)\.\./({names})", lambda m: f"]({m[1]}{INSIDE[m[2]]}", markdown)
