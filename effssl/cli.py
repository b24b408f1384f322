"""The command line: the same verbs as the Python API.

A wrong request ends with one line and exit code 2, a failed run with 1, a run that was stopped and saved with 75. No
torch is imported here before a verb runs.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys

import effssl.commands  # noqa: F401  now, because a time budget counts from here
from effssl.runtime.errors import RequestError, RunFailed, Stopped, did_you_mean, speaking_flags
from effssl.runtime.processes import check_environment, is_first_process
from effssl.runtime.versions import EFFSSL

# Verb: module and function of effssl.commands, and its help. A function with _ at its end parses its arguments itself.
VERBS = {
    "pretrain": ("pretrain:pretrain_", "train an encoder on images without labels"),
    "eval": ("evaluate:eval_", "evaluate an encoder: effssl eval WHAT RUN (knn, linear, transfer, …)"),
    "pack": ("pack:pack", "decode a folder of images once and not in every epoch: effssl pack FOLDER"),
    "embed": ("embed:embed_", "write the features of all images to a file: effssl embed RUN --out FILE"),
    "browse": ("browse:browse_", "browse images on one page, by map, clusters, neighbors …: effssl browse RUN"),
    "neighbors": ("neighbors:neighbors_", "find similar images: effssl neighbors RUN --query IMAGE"),
    "duplicates": ("duplicates:duplicates_", "find near-duplicates: effssl duplicates RUN"),
    "outliers": ("outliers:outliers_", "find unusual images: effssl outliers RUN"),
    "subset": ("subset:subset_", "select different images, for an overview: effssl subset RUN --size 100"),
    "classify": (
        "classify:classify_",
        "predict labels from few of them: effssl classify RUN --labels labels.csv --out FILE",
    ),
    "sweep": ("sweep:sweep_", "compare settings by validation kNN: effssl sweep … --over lr=0.1,0.2"),
    "study": (
        "study:study_",
        "reproduce the paper's experiments: effssl study list, effssl study run E06 --scale smoke",
    ),
    "saliency": (
        "saliency:saliency",
        "compute saliency maps for crops: effssl saliency RUN --out maps.npz",
    ),
    "report": ("report:report", "write an HTML page of a run, of several runs, or of a study: effssl report RUN …"),
    "watch": ("watch:watch", "follow a run in another terminal: effssl watch RUN"),
    "export": ("export:export_", "write an encoder for other software: effssl export RUN --to torchvision|timm|onnx|…"),
    "import": (
        "export:import_",
        "read an encoder from another project's checkpoint: effssl import FILE --encoder resnet50 …",
    ),
    "recipes": ("recipes:recipes_", "list the recipes, or show one: effssl recipes [NAME]"),
}
HELP = """effssl: efficient self-supervised learning of visual representations

usage: effssl VERB [options]      (effssl VERB --help shows its options)

{verbs}

A run knows its own images; --data names others.

first steps:
  effssl pretrain --data path/to/photos --budget 5m --out runs/photos
  effssl duplicates runs/photos
  effssl neighbors runs/photos --query IMAGE
"""


@speaking_flags()
def main(argv: list[str] | None = None) -> None:
    """Entry point of `effssl`."""
    args = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):  # a terminal that knows ASCII only is no reason to fail
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")
    try:
        _dispatch(args)
    except RequestError as error:
        _fail(str(error), 2)
    except RunFailed as error:
        _fail(str(error), 1)
    except Stopped as error:
        _fail(str(error), 75)
    except BrokenPipeError:  # the reader of the output (head, less) has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # disk full, permission denied
        wrong = error.errno == errno.ENAMETOOLONG
        _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", 2 if wrong else 1)
    except KeyboardInterrupt:
        _fail("stopped; resume with --resume auto" if args[:1] == ["pretrain"] else "stopped", 130)


def _fail(message: str, code: int) -> None:
    if code == 1 or _reports_requests():
        print(f"effssl: {message}", file=sys.stderr, flush=True)
    sys.exit(code)


def _reports_requests() -> bool:
    """Whether this process says what is wrong with a request: one of torchrun's, or each that it did not start."""
    try:
        check_environment()
        return is_first_process()
    except RequestError:
        return True


def _dispatch(args: list[str]) -> None:
    if not args or args[0] in ("-h", "--help", "help"):
        print(HELP.format(verbs="\n".join(f"  {verb:10} {text}" for verb, (_, text) in VERBS.items())))
        return
    if args[0] == "--version":
        print(EFFSSL)
        return
    verb, rest = args[0], args[1:]
    if verb not in VERBS:
        raise RequestError(f"unknown verb {verb!r}{did_you_mean(verb, VERBS)}; verbs: {', '.join(VERBS)}")
    where, _, function = VERBS[verb][0].partition(":")
    command = getattr(importlib.import_module(f"effssl.commands.{where}"), function)
    if function.endswith("_"):
        command(rest)
        return
    from effssl.commands.one_line import parse_command

    parse_command(command, rest, f"effssl {verb}")
