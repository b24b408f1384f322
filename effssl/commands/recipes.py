"""effssl recipes: list them, or show one."""

from __future__ import annotations

from effssl.runtime.errors import RequestError, did_you_mean


def recipes_(args: list[str]) -> None:
    """Print all recipes with cost and score, or one recipe."""
    from effssl import recipes

    names = recipes.names()
    if args and args[0] in ("-h", "--help"):
        print("usage: effssl recipes [NAME]\n\nList all recipes with their cost and score, or print one.")
    elif not args:
        width = max(map(len, names))
        print("\n".join(f"{name:{width}} {recipes.about(name)}" for name in names))
    elif args[0] in names:
        print((recipes.FOLDER / f"{args[0]}.yaml").read_text(encoding="utf-8"), end="")
    else:
        raise RequestError(f"unknown recipe {args[0]!r}{did_you_mean(args[0], names)}; effssl recipes lists them")
