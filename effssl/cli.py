"""The command line: the same verbs as the Python API.

Bad requests end with one line and exit code 2, failed runs with 1, runs that were stopped and saved with 75. Nothing
here imports torch until a verb really runs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from effssl.config import Config
from effssl.errors import RequestError, RunFailed, Stopped, did_you_mean

VERBS = {
    "pretrain": "train an encoder on images without labels",
    "eval": "measure an encoder: effssl eval WHAT RUN (knn, linear, transfer, …)",
    "pack": "decode a folder of images once, so that training need not: effssl pack FOLDER",
    "saliency": "maps for crops that show what an image is about: effssl saliency RUN --out maps.npz",
    "recipes": "list the recipes, or show one: effssl recipes [NAME]",
}
HELP = """effssl: efficient self-supervised learning of visual representations

usage: effssl VERB [options]      (effssl VERB --help tells more)

{verbs}

first steps:
  effssl pretrain --data cifar10 --objective byol+rotation --out runs/first
  effssl eval knn runs/first
  effssl pretrain --data path/to/photos --objective simsiam+rotation
"""


@dataclass(frozen=True)
class Pretrain(Config):
    """Train an encoder on images without labels.

    The objective is a weighted sum of terms, e.g. byol+rotation or "simclr + 0.5*rotation". What is not said comes
    from the recipe that fits the data, the objective and the machine. Options of a term are --TERM.OPTION.
    """

    out: str = ""
    """run folder to make; default runs/<data>-<terms>-<seed>"""
    resume: Literal["never", "auto"] = "never"
    """auto goes on where the run in --out stopped, or starts it"""
    config: str = ""
    """a YAML file with settings, e.g. another run's config.yaml; flags win over it"""
    quiet: bool = False
    """show nothing but problems"""


NOT_SETTINGS = ("out", "resume", "config", "quiet")


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
        _fail("stopped; go on with --resume auto", 130)


def _fail(message: str, code: int) -> None:
    if os.environ.get("RANK", "0") == "0" or code == 1:  # of many processes with the same mistake one speaks
        print(f"effssl: {message}", file=sys.stderr, flush=True)
    sys.exit(code)


def _dispatch(args: list[str]) -> None:
    if not args or args[0] in ("-h", "--help", "help"):
        print(HELP.format(verbs="\n".join(f"  {verb:10} {text}" for verb, text in VERBS.items())))
        return
    if args[0] == "--version":
        from effssl import __version__

        print(__version__)
        return
    verb, rest = args[0], args[1:]
    if verb not in VERBS:
        raise RequestError(f"unknown verb {verb!r}{did_you_mean(verb, VERBS)}; verbs: {', '.join(VERBS)}")
    {"pretrain": _pretrain, "eval": _eval, "pack": _pack, "saliency": _saliency, "recipes": _recipes}[verb](rest)


# ---------------------------------------------------------------------------------------------------------------
# pretrain


def _pretrain(args: list[str]) -> None:
    import tyro

    parsed = tyro.cli(Pretrain, args=args, default=_defaults(args), prog="effssl pretrain")
    from effssl.pretraining import execute

    run = execute(given(parsed, args), parsed.out or None, parsed.resume, parsed.config or None, parsed.quiet)
    if not parsed.quiet and os.environ.get("RANK", "0") == "0":
        measurable = "knn" in run.metrics()[-1]
        use = f"effssl eval knn {run.folder}" if measurable else f'encoder = effssl.load("{run.folder}") in Python'
        print(f"done: {run.folder}   next: {use}")


def _defaults(args: list[str]) -> Pretrain:
    """The defaults that --help shows: those of the recipe that the rest of the command line leads to."""
    from effssl.recipes import resolve

    if not {"-h", "--help"} & set(args):
        return Pretrain()
    flags = {name: _value_after(args, f"--{name}") for name in ("data", "objective", "recipe")}
    plan = resolve({name: value for name, value in flags.items() if value})
    config = {f.name: getattr(plan.config, f.name) for f in dataclasses.fields(Config)}
    return Pretrain(**config | {"recipe": flags["recipe"] or "auto"})


def _value_after(args: list[str], flag: str) -> str:
    for i, arg in enumerate(args):
        if arg == flag and i + 1 < len(args):
            return args[i + 1]
        if arg.startswith(f"{flag}="):
            return arg.split("=", 1)[1]
    return ""


def given(parsed: Any, args: list[str]) -> dict[str, Any]:
    """Of a parsed command line, only what was really written, as nested mappings."""
    said = {arg[2:].split("=", 1)[0].replace("-", "_") for arg in args if arg.startswith("--")}
    said |= {_positive(name) for name in said}

    def pick(node: Any, prefix: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for item in dataclasses.fields(node):
            value, name = getattr(node, item.name), f"{prefix}{item.name}"
            if dataclasses.is_dataclass(value):
                if inner := pick(value, f"{name}."):
                    values[item.name] = inner
            elif name in said and name not in NOT_SETTINGS:
                values[item.name] = value
        return values

    return pick(parsed, "")


def _positive(name: str) -> str:
    """tyro writes a false flag as --no-x or --group.no-x."""
    *groups, last = name.split(".")
    return ".".join([*groups, last.removeprefix("no_")])


# ---------------------------------------------------------------------------------------------------------------
# eval and recipes


EVAL_HELP = """usage: effssl eval WHAT RUN [options]      (effssl eval WHAT --help tells the options)

RUN is a run folder, a weight file (.safetensors, .pt, .pth), a torchvision model or timm:<name>. WHAT is one of

{protocols}
"""


def _eval(args: list[str]) -> None:
    from effssl.evaluation.options import PROTOCOLS

    if args[:1] == ["probe"]:  # effssl eval probe rotation RUN
        args = [f"probe-{args[1]}" if len(args) > 1 else "probe", *args[2:]]
    if not args or args[0] in ("-h", "--help"):
        lines = [f"  {name:18} {(kind.__doc__ or '').strip()}" for name, kind in PROTOCOLS.items()]
        print(EVAL_HELP.format(protocols="\n".join(lines)))
        return
    what, rest = args[0], args[1:]
    if what not in PROTOCOLS:
        raise RequestError(f"unknown evaluation {what!r}{did_you_mean(what, PROTOCOLS)}; known: {', '.join(PROTOCOLS)}")
    run = next((arg for arg in rest if not arg.startswith("-")), "") if rest and not rest[0].startswith("-") else ""
    if not run and not {"-h", "--help"} & set(rest):
        raise RequestError(f"which encoder? effssl eval {what} RUN, then options")
    evaluate(what, run, rest[1:] if run else rest)


def evaluate(what: str, run: str, args: list[str]) -> None:
    """Measure an encoder, print the score and add it, with its protocol, to the run's results.json."""
    import tyro

    from effssl.evaluation.options import PROTOCOLS, Target

    kind = dataclasses.make_dataclass("Eval", [], bases=(PROTOCOLS[what], Target), frozen=True)
    parsed: Any = tyro.cli(kind, args=args, prog=f"effssl eval {what} RUN", description=PROTOCOLS[what].__doc__)
    settings = {f.name: getattr(parsed, f.name) for f in dataclasses.fields(PROTOCOLS[what])}
    from effssl.device import pick_device
    from effssl.evaluation import evaluate, open_source, options_of
    from effssl.files import write_atomically
    from effssl.network.foreign import refuse_flags
    from effssl.run import Run, load

    options_of(what, settings)  # refuses what is out of range, before anything slow
    folder, out, data = Path(run).expanduser(), Path(parsed.out).expanduser(), parsed.data or None
    if parsed.out and (out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK)):
        raise RequestError(f"--out {parsed.out} cannot be written; it names a file in a folder that exists")
    if folder.is_dir():
        refuse_flags(run, parsed.encoder, parsed.weights, parsed.image_size)
        score = Run(folder).evaluate(what, data, parsed.device, parsed.classes, **settings)
    else:
        encoder = load(run, parsed.encoder, parsed.weights, parsed.image_size).to(pick_device(parsed.device))
        score = evaluate(what, encoder, open_source(what, settings, data, classes=parsed.classes), **settings)
    if parsed.out:
        write_atomically(out, json.dumps(score.record(), indent=2) + "\n")
    _show(score, f"{what} of {run} on {score.source['data']}")


def _show(score: Any, title: str) -> None:
    from effssl.progress import table

    rows = [(score.metric, f"{score.value:.2f} %")]
    for key, value in score.also.items():
        if isinstance(value, dict):
            rows += [(f"{key} {name}".replace("_", " "), f"{part:.2f} %") for name, part in value.items()]
        else:
            rows.append((key.replace("_", " "), f"{value:.2f} %"))
    plain = {key: value for key, value in score.constants.items() if not isinstance(value, dict)}
    rows += [
        (key.replace("_", " "), f"{value:.6g}" if isinstance(value, float) else str(value))
        for key, value in plain.items()
    ]
    table(title, ("", "value"), rows)
    if sets := score.constants.get("sets"):
        shown = [(n, f"{s['value']:.2f} %", s["metric"], f"{s['C']:.3g}", s["split"]) for n, s in sets.items()]
        table("each by its own rule", ("set", "value", "metric", "C", "split"), shown)


def _pack(args: list[str]) -> None:
    import tyro

    tyro.cli(pack, args=args, prog="effssl pack")


def pack(
    folder: str,
    /,
    out: str = "",
    short_side: int = 256,
    labels: Literal["auto", "folders", "none"] = "auto",
    classes: str = "",
    workers: int = -1,
) -> None:
    """Decode a folder of images once, for `effssl pretrain --data FOLDER.pack`; interrupted, it goes on when repeated.

    Given a finished pack instead, check every image's checksum.

    Args:
        folder: folder of images, or a finished pack to check
        out: folder to make; default FOLDER.pack
        short_side: larger images are shrunk to a shorter side of so many pixels; 0 keeps all as they are
        labels: sub-folders are labels: auto only in a train/–val/ or train/–test/ layout
        classes: pack only these class folders: imagenet100, or a text file with their names
        workers: processes that decode; −1 is one per core
    """
    from effssl.data import open_data
    from effssl.data.pack import pack

    made = pack(folder, out or None, short_side=short_side, labels=labels, classes=classes, workers=workers)
    data = open_data(str(made))
    counts = [len(part) for part in (data.train, data.test, data.held_out) if part is not None]
    size = (made / "pixels.bin").stat().st_size
    print(f"{made}: {' + '.join(map(str, counts))} images, {size / 1e6:,.0f} MB   next: effssl pretrain --data {made}")


def _saliency(args: list[str]) -> None:
    import tyro

    tyro.cli(saliency, args=args, prog="effssl saliency")


def saliency(run: str, /, out: str, data: str = "", target: Literal["label", "predicted"] = "label") -> None:
    """Store Grad-CAM maps of all training images, for `effssl pretrain --augment.saliency`.

    Args:
        run: run folder of an encoder trained with the supervised term
        out: .npz file to write
        data: another data set than the run's own
        target: the class that a map explains
    """
    from effssl.data import open_data
    from effssl.evaluation.saliency import saliency_maps
    from effssl.run import Run

    source = Run(run)
    print(f"maps: {saliency_maps(source, open_data(data) if data else source.data(), out, target)}")


def _recipes(args: list[str]) -> None:
    from effssl import recipes

    if args and args[0] in ("-h", "--help"):
        print("usage: effssl recipes [NAME]\n\nList all recipes with their cost and score, or print one.")
        return
    if not args:
        for name in recipes.names():
            about = recipes.about(name)
            print(f"{name:20} {about}")
        return
    path = recipes.FOLDER / f"{args[0]}.yaml"
    if not path.exists():
        raise RequestError(f"unknown recipe {args[0]!r}{did_you_mean(args[0], recipes.names())}")
    print(path.read_text(), end="")
