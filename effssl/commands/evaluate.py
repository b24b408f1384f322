"""effssl eval WHAT RUN: evaluate an encoder."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from effssl.commands.encoder_source import EncoderSource
from effssl.commands.one_line import parse_command
from effssl.runtime.errors import RequestError
from effssl.runtime.files import check_output, write_atomically
from effssl.runtime.reading import read_json

if TYPE_CHECKING:
    from effssl.evaluation.score import Score

UNASKED = "(by default with knn and agreement, where that takes about a minute at most; patches are 100 filters then)"
MORE = "--baselines shows pixels, k-means patches and the untrained network beside it"
EVAL_HELP = """usage: effssl eval WHAT RUN [options]      (effssl eval WHAT --help lists the options)

RUN is a run folder, a weight file (.safetensors, .pt, .pth), a torchvision model or timm:<name>. WHAT is one of

{protocols}
"""


@dataclass(frozen=True)
class EvaluationTarget(EncoderSource):
    """Flags of every evaluation, beside the options of its protocol."""

    data: str = ""
    """another data set than the run's own; detect: a folder in VOC layout; transfer with --sets: where the sets are"""
    classes: str = ""
    """read only these class folders of --data: imagenet100, or a text file with their names"""
    whiten: Literal["on", "off"] = "on"
    """off evaluates h itself where an encoder's features are whitened"""
    baselines: Annotated[bool | None, tyro.conf.DisallowNone, tyro.conf.arg(help_behavior_hint=UNASKED)] = None
    """also evaluate what costs nothing: the untrained network, k-means patches, pixels; and the starting weights"""
    out: str = ""
    """also write the score to this JSON file"""


def eval_(args: list[str]) -> None:
    """Read which protocol and which encoder, or show help."""
    from effssl.evaluation.catalog import check_protocol_name, describe_protocol, protocol_names

    names = protocol_names()
    if not args or args[0] in ("-h", "--help"):
        lines = [f"  {name.replace('-', ' '):18} {describe_protocol(name)}" for name in names]
        print(EVAL_HELP.format(protocols="\n".join(lines)))
        return
    # Names of two words: effssl eval probe rotation RUN.
    forms = [name.replace("-", " ") for name in names if name.startswith(f"{args[0]}-")]
    if forms:
        usage = ", or ".join(f"effssl eval {form} RUN" for form in forms)
        if args[1:2] in (["-h"], ["--help"]):
            print(f"usage: {usage}      (--help after the name lists the options)")
            return
        if len(args) == 1 or args[1].startswith("-"):
            raise RequestError(f"which {args[0]}? {usage}")
        args = [f"{args[0]}-{args[1]}", *args[2:]]
    what, rest = args[0], args[1:]
    check_protocol_name(what)
    run = rest[0] if rest and not rest[0].startswith("-") else ""
    if not run and not {"-h", "--help"} & set(rest):
        raise RequestError(f"which encoder? effssl eval {what} RUN, then options")
    evaluate_(what, run, rest[1:] if run else rest)


def evaluate_(what: str, run: str, args: list[str]) -> None:
    """Evaluate an encoder, print the score and add it, with its protocol, to the run's results.json."""

    from effssl.evaluation.catalog import describe_protocol, find_protocol

    protocol = find_protocol(what)
    kind = dataclasses.make_dataclass("Eval", [], bases=(protocol.options, EvaluationTarget), frozen=True)
    parsed: Any = parse_command(kind, args, f"effssl eval {what} RUN", description=describe_protocol(what))
    settings = {item.name: getattr(parsed, item.name) for item in dataclasses.fields(protocol.options)}
    protocol.options_of(settings)  # refuses values out of range before anything slow
    if parsed.out:
        check_score_file(Path(parsed.out).expanduser())
    score, baselines = _scores_of(what, run, parsed, settings)
    if parsed.out:
        write_atomically(Path(parsed.out).expanduser(), json.dumps(score.record(), indent=2) + "\n")
    print_score(score, f"{what} of {run} on {score.source['data']}")
    if baselines:
        print_baselines({run: score, **baselines})
    else:
        has_baselines = not protocol.needs_projector and not protocol.reads_folder(protocol.options_of(settings))
        is_baseline = run.startswith(("pixels", "patches"))
        print_standing(run, MORE if has_baselines and parsed.baselines is None and not is_baseline else "")


def _scores_of(
    what: str, run: str, target: EvaluationTarget, settings: dict[str, Any]
) -> tuple[Score, dict[str, Score]]:
    """Evaluate the encoder of a run folder, or one from elsewhere; and the baselines, if asked for."""
    from effssl.evaluation import evaluate_beside, find_protocol, open_source
    from effssl.network.foreign import refuse_flags
    from effssl.runtime.device import pick_device
    from effssl.verbs import Run, load

    folder, data = Path(run).expanduser(), target.data or None
    if folder.is_dir():
        refuse_flags(run, target.encoder, target.weights, target.image_size)
        whiten, others = target.whiten, target.baselines
        return Run(folder).scores(what, data, target.device, target.classes, whiten, others, **settings)
    encoder = load(run, target.encoder, target.weights, target.image_size, target.whiten).to(pick_device(target.device))
    protocol = find_protocol(what)
    source = open_source(protocol, protocol.options_of(settings), data, classes=target.classes)
    if source is None:
        raise RequestError("an encoder that effssl did not train needs --data")
    return evaluate_beside(what, encoder, source, target.baselines, **settings)


def check_score_file(path: Path) -> None:
    """Refuse to write a score where that is not possible, over a file of a run, and over anything but a score."""
    from effssl.run import is_run_file, is_score

    check_output(path, overwrite=True)
    if is_run_file(path.name) and (path.parent / "config.yaml").is_file():
        raise RequestError(f"{path} is a file of the run itself; choose another --out")
    try:
        free = not path.exists() or (path.is_file() and is_score(read_json(path)))
    except (OSError, ValueError):  # unreadable, or not JSON
        free = False
    if not free:
        raise RequestError(f"{path} exists and is not a score; choose another --out")


def print_standing(run: str, more: str) -> None:
    """How a run compared with what costs nothing while it was trained, which is known already; and what shows more."""
    from effssl.report.standing import standing
    from effssl.verbs import Run

    parts = [more] if more else []
    if Path(run).expanduser().is_dir():
        folder = Run(Path(run).expanduser())
        found = standing(folder.metrics(), folder.config.start_from)
        parts = ([f"on its own images while it was trained: {found.text}"] if found else []) + parts
    if parts:
        print("; ".join(parts))


def print_baselines(scores: dict[str, Score]) -> None:
    """The scores of an encoder and of what costs nothing, side by side, with all that was measured in percent."""
    from effssl.runtime.progress import table

    first = next(iter(scores.values()))
    further = [key for key, value in first.also.items() if isinstance(value, float)]
    columns = ("", first.metric, *(key.replace("_", " ") for key in further))
    rows = [
        (name, *(f"{value:.2f} %" for value in (score.value, *(score.also[key] for key in further))))
        for name, score in scores.items()
    ]
    table("beside what costs nothing", columns, rows)


def print_score(score: Score, title: str) -> None:
    """A score as tables: its value, what else was measured, its constants."""
    from effssl.runtime.progress import table

    rows = [(score.metric, f"{score.value:.2f} %")]
    for key, value in score.also.items():
        if isinstance(value, dict):
            rows += [(f"{key} {name}".replace("_", " "), f"{part:.2f} %") for name, part in value.items()]
        else:
            rows.append((key.replace("_", " "), f"{value:.2f} %"))
    if "chance" in score.constants:
        rows.append(("chance", f"{score.constants['chance']:.2f} %"))
    left = {key: value for key, value in score.constants.items() if key != "chance"}
    plain = {key: value for key, value in left.items() if not isinstance(value, dict)}
    rows += [
        (key.replace("_", " "), f"{value:.6g}" if isinstance(value, float) else str(value))
        for key, value in plain.items()
    ]
    rows += [(key.replace("_", " "), f"{value:,}") for key, value in score.source.items() if key.endswith("_images")]
    table(title, ("", "value"), rows)
    if sets := score.constants.get("sets"):
        shown = [(n, f"{s['value']:.2f} %", s["metric"], f"{s['C']:.3g}", s["split"]) for n, s in sets.items()]
        table("each by its own rule", ("set", "value", "metric", "C", "split"), shown)
