"""What mkdocs does beside its own work: pages of the repository's root, and no page that asks another host.

A changelog belongs where people look for it, beside README; links are written as the code-hosting site follows them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

NAMES = ("plain_loop.py", "lightning_module.py", "serve.py", "first.ipynb")
EXAMPLES = {f"examples/{name}": f"examples/{name}" for name in NAMES}
COPIED = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"} | EXAMPLES
INSIDE = COPIED | {"README.md": "index.md"}
OUTSIDE = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["'](?:https?:)?//[^>]*>""")


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


def on_post_page(output: str, page: Page, **_: Any) -> None:
    """The site works without network: fonts, scripts and pictures are its own."""
    if asked := OUTSIDE.search(output):
        raise PluginError(f"{page.file.src_uri} would fetch something from elsewhere: {asked[0]}")
