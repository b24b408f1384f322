"""The command line: the same verbs as the Python API.

Bad requests end with one line and exit code 2, failed runs with 1, runs that were stopped and saved with 75. Nothing
here imports torch until a verb really runs.
"""

from __future__ import annotations

import importlib
import os
import sys

from effssl.commands.pretrain import STARTED  # noqa: F401  the clock of a time budget starts with the program
from effssl.runtime.errors import RequestError, RunFailed, Stopped, did_you_mean

# Verb: module and function of effssl.commands, and what it is for. A name with _ at its end reads its arguments itself.
VERBS = {
    "pretrain": ("pretrain:pretrain_", "train an encoder on images without labels"),
    "eval": ("evaluate:eval_", "measure an encoder: effssl eval WHAT RUN (knn, linear, transfer, …)"),
    "pack": ("pack:pack", "decode a folder of images once, so that training need not: effssl pack FOLDER"),
    "embed": (
        "explore:embed_",
        "features of a folder of images, for other tools: effssl embed RUN --data FOLDER --out F",
    ),
    "neighbors": (
        "explore:neighbors_",
        "images most similar to others: effssl neighbors RUN --data FOLDER --query IMAGE",
    ),
    "duplicates": ("explore:duplicates_", "candidates for near-duplicates in a folder, and which to keep"),
    "outliers": ("explore:outliers_", "odd images in a folder"),
    "subset": ("explore:subset_", "a diverse few of many images: effssl subset RUN --data FOLDER --size 100"),
    "sweep": ("sweep:sweep_", "try settings by their validation kNN: effssl sweep … --over lr=0.1,0.2"),
    "study": ("study:study_", "the paper's experiments: effssl study list, effssl study run E06 --scale smoke"),
    "saliency": (
        "saliency:saliency",
        "maps for crops that show what an image is about: effssl saliency RUN --out maps.npz",
    ),
    "report": ("report:report", "one HTML page of a run, of several to compare, or of a study: effssl report RUN …"),
    "watch": ("watch:watch", "follow a run in another terminal: effssl watch RUN"),
    "export": ("export:export", "an encoder for other software: effssl export RUN --to torchvision|timm|onnx|…"),
    "import": (
        "export:import_",
        "an encoder from another project's checkpoint: effssl import FILE --encoder resnet50 …",
    ),
    "recipes": ("recipes:recipes_", "list the recipes, or show one: effssl recipes [NAME]"),
}
HELP = """effssl: efficient self-supervised learning of visual representations

usage: effssl VERB [options]      (effssl VERB --help tells more)

{verbs}

first steps:
  effssl pretrain --data cifar10 --objective byol+rotation --out runs/first
  effssl eval knn runs/first
  effssl pretrain --data path/to/photos --objective simsiam+rotation
"""


def main(argv: list[str] | None = None) -> None:
    """Entry point of `effssl`."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        _dispatch(args)
    except RequestError as error:
        _fail(str(error), 2)
    except RunFailed as error:
        _fail(str(error), 1)
    except Stopped as error:
        _fail(str(error), 75)
    except BrokenPipeError:  # the reader of our output (head, less) had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # disk full, permission denied
        _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", 1)
    except KeyboardInterrupt:
        _fail("stopped; go on with --resume auto" if args[:1] == ["pretrain"] else "stopped", 130)


def _fail(message: str, code: int) -> None:
    if os.environ.get("RANK", "0") == "0" or code == 1:  # of many processes with the same mistake one speaks
        print(f"effssl: {message}", file=sys.stderr, flush=True)
    sys.exit(code)


def _dispatch(args: list[str]) -> None:
    if not args or args[0] in ("-h", "--help", "help"):
        print(HELP.format(verbs="\n".join(f"  {verb:10} {text}" for verb, (_, text) in VERBS.items())))
        return
    if args[0] == "--version":
        from effssl import __version__

        print(__version__)
        return
    verb, rest = args[0], args[1:]
    if verb not in VERBS:
        raise RequestError(f"unknown verb {verb!r}{did_you_mean(verb, VERBS)}; verbs: {', '.join(VERBS)}")
    where, _, function = VERBS[verb][0].partition(":")
    command = getattr(importlib.import_module(f"effssl.commands.{where}"), function)
    if function.endswith("_"):  # it reads the command line itself
        command(rest)
        return
    import tyro

    tyro.cli(command, args=rest, prog=f"effssl {verb}")
