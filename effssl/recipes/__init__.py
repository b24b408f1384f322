"""Recipes: published and measured settings, one flat YAML file each in this folder. What a file says is what runs.

`resolve` turns a request into a complete plan: defaults < recipe < file < flags.
"""

from effssl.recipes.catalog import FOLDER, about, choose, names, read
from effssl.recipes.resolve import Plan, resolve

__all__ = ["FOLDER", "Plan", "about", "choose", "names", "read", "resolve"]
