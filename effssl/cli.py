"""The command line: the same verbs as the Python API.

Bad requests end with one line and exit code 2, failed runs with 1, runs that were stopped and saved with 75. Nothing
here imports torch until a verb really runs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from effssl.config import Config
from effssl.errors import RequestError, RunFailed, Stopped, did_you_mean

STARTED = time.monotonic()  # about when the command was given: a time budget counts from here
VERBS = {
    "pretrain": "train an encoder on images without labels",
    "eval": "measure an encoder: effssl eval WHAT RUN (knn, linear, transfer, …)",
    "pack": "decode a folder of images once, so that training need not: effssl pack FOLDER",
    "sweep": "try settings by their validation kNN: effssl sweep … --over lr=0.1,0.2 rotation.weight=0.1,0.4",
    "study": "the paper's experiments: effssl study list, effssl study run E06 --scale smoke",
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


NOT_SETTINGS = ("out", "resume", "config", "quiet", "over", "search", "trials", "jobs", "prune")


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
    verbs = {"pretrain": _pretrain, "eval": _eval, "pack": _pack, "study": _study, "sweep": _sweep}
    (verbs | {"saliency": _saliency, "recipes": _recipes})[verb](rest)


# ---------------------------------------------------------------------------------------------------------------
# pretrain


def _pretrain(args: list[str]) -> None:
    import tyro

    parsed = tyro.cli(Pretrain, args=args, default=_defaults(args), prog="effssl pretrain")
    from effssl.pretraining import execute

    said = given(parsed, args)
    started = STARTED if args == sys.argv[2:] else None  # called from Python, the command begins now
    run = execute(said, parsed.out or None, parsed.resume, parsed.config or None, parsed.quiet, started)
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


# ---------------------------------------------------------------------------------------------------------------
# sweep and study


@dataclass(frozen=True)
class Sweep(Pretrain):
    """Try settings in short runs and compare them by kNN on validation images; test images are never looked at."""

    over: tuple[str, ...] = ()
    """settings and what to try: lr=0.1,0.2 (values), lr=0.05:1 or lr=0.05:1:log (ranges, for optuna)"""
    search: Literal["grid", "optuna"] = "grid"
    trials: int = 20
    """how many settings optuna tries"""
    jobs: int = 2
    """runs of a grid at a time"""
    prune: bool = True
    """end trials early that are behind the median of the others"""


def _sweep(args: list[str]) -> None:
    import tyro

    parsed = tyro.cli(Sweep, args=args, prog="effssl sweep")
    from effssl.sweep import parse_range, run_sweep, show

    if not parsed.over:
        raise RequestError("say what to try, e.g. --over lr=0.1,0.2 rotation.weight=0.1,0.4")
    if parsed.jobs < 1 or parsed.trials < 1:
        raise RequestError("--jobs and --trials are at least 1")
    out, ranges = Path(parsed.out or "sweeps/first"), [parse_range(text) for text in parsed.over]
    trials = run_sweep(given(parsed, args), ranges, out, parsed.search, parsed.trials, parsed.jobs, parsed.prune)
    show(trials, out)


def _study(args: list[str]) -> None:
    import tyro

    what, rest = (args[0], args[1:]) if args else ("", [])
    verbs: dict[str, Callable[..., None]] = {"list": study_list, "run": study_run, "show": study_show}
    if what in ("", "-h", "--help"):
        print("usage: effssl study list | effssl study run NAME [options] | effssl study show NAME")
        return
    if what not in verbs:
        raise RequestError(f"unknown {what!r}{did_you_mean(what, verbs)}; use effssl study list, run or show")
    tyro.cli(verbs[what], args=rest, prog=f"effssl study {what}")


def study_list() -> None:
    """All studies: tables and figures of the paper."""
    from effssl.progress import table
    from effssl.studies import load, names

    rows = [(s.name, s.title, s.source, s.data, str(len(s.arms)), ", ".join(s.measures)) for s in map(load, names())]
    table("studies", ("", "", "in the paper", "data", "arms", "measures"), rows)


def study_run(
    name: str,
    /,
    scale: Literal["smoke", "cpu", "paper"] = "cpu",
    seeds: int = 1,
    jobs: int = 2,
    out: str = "studies",
    images: str = "",
    voc: str = "",
    sets: str = "",
    maps: str = "",
) -> None:
    """Run a study's arms, as far as they are not there yet, and write table, claims and figure.

    Args:
        name: E01 … E20
        scale: smoke takes seconds per arm, cpu minutes, paper is the published setting
        seeds: runs per arm
        jobs: runs at a time; 0 runs them one after another in this process
        out: folder for runs and results
        images: folder of photographs with train/ and val/, where the study needs one: Imagenette, or ImageNet itself
        voc: folder in VOC layout, for detection
        sets: labelled sets for transfer, comma-separated folders or names
        maps: saliency maps, for E02
    """
    from effssl.studies import load
    from effssl.studies.report import print_results, write
    from effssl.studies.runner import Sources, run_study

    if seeds < 1 or jobs < 0:
        raise RequestError("--seeds is at least 1 and --jobs at least 0")
    study, folder = load(name), Path(out)
    outcomes = run_study(study, scale, seeds, jobs, folder, Sources(images, voc, sets, maps))
    command = f"effssl study run {study.name} --scale {scale} --seeds {seeds} --jobs {jobs}"
    given = {"images": images, "voc": voc, "sets": sets, "maps": maps}
    command += "".join(f" --{flag} {','.join(Path(p).name for p in v.split(','))}" for flag, v in given.items() if v)
    print_results(study, outcomes)
    made = write(study, scale, outcomes, command, folder / f"{study.name}-{scale}")
    failed = [o for o in outcomes if o.failed]
    print(f"written: {made}   show it again: effssl study show {study.name} --scale {scale} --out {out}")
    if failed:
        raise RunFailed(
            f"{len(failed)} of {len(outcomes)} runs failed, e.g. {failed[0].job.arm.name}: {failed[0].failed}"
        )


def study_show(name: str, /, scale: Literal["smoke", "cpu", "paper"] = "cpu", out: str = "studies") -> None:
    """Show the results of a study.

    Args:
        name: E01 … E20
        scale: that it was run at
        out: folder that it was run in
    """
    from effssl.studies import load
    from effssl.studies.report import show

    show(load(name), Path(out) / f"{load(name).name}-{scale}")


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
