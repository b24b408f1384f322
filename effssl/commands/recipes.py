"""effssl recipes: list them, or show one."""

from __future__ import annotations

from effssl.runtime.errors import RequestError, did_you_mean


def recipes_(args: list[str]) -> None:
    """Print names with cost and score, or one recipe."""
    from effssl import recipes as known

    if args and args[0] in ("-h", "--help"):
        print("usage: effssl recipes [NAME]\n\nList all recipes with their cost and score, or print one.")
        return
    if not args:
        for name in known.names():
            about = known.about(name)
            print(f"{name:20} {about}")
        return
    path = known.FOLDER / f"{args[0]}.yaml"
    if not path.exists():
        raise RequestError(f"unknown recipe {args[0]!r}{did_you_mean(args[0], known.names())}")
    print(path.read_text(), end="")
