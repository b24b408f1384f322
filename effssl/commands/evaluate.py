"""effssl eval WHAT RUN: measure an encoder."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from effssl.runtime.errors import RequestError, did_you_mean
from effssl.runtime.files import check_output, write_atomically

EVAL_HELP = """usage: effssl eval WHAT RUN [options]      (effssl eval WHAT --help tells the options)

RUN is a run folder, a weight file (.safetensors, .pt, .pth), a torchvision model or timm:<name>. WHAT is one of

{protocols}
"""
PROBES = "effssl eval probe rotation RUN, or effssl eval probe contrastive RUN"


def eval_(args: list[str]) -> None:
    """Which protocol, which encoder."""
    from effssl.evaluation.options import PROTOCOLS

    if args[:1] == ["probe"]:  # effssl eval probe rotation RUN
        if args[1:2] in (["-h"], ["--help"]):
            print(f"usage: {PROBES}      (--help after rotation or contrastive tells the options)")
            return
        if len(args) == 1 or args[1].startswith("-"):
            raise RequestError(f"which probe? {PROBES}")
        args = [f"probe-{args[1]}", *args[2:]]
    if not args or args[0] in ("-h", "--help"):
        lines = [f"  {name:18} {(kind.__doc__ or '').strip()}" for name, kind in PROTOCOLS.items()]
        print(EVAL_HELP.format(protocols="\n".join(lines)))
        return
    what, rest = args[0], args[1:]
    if what not in PROTOCOLS:
        raise RequestError(f"unknown evaluation {what!r}{did_you_mean(what, PROTOCOLS)}; known: {', '.join(PROTOCOLS)}")
    run = rest[0] if rest and not rest[0].startswith("-") else ""
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
    from effssl.evaluation import evaluate, open_source, options_of
    from effssl.network.foreign import refuse_flags
    from effssl.run import Run, load
    from effssl.runtime.device import pick_device

    options_of(what, settings)  # refuses what is out of range, before anything slow
    folder, out, data = Path(run).expanduser(), Path(parsed.out).expanduser(), parsed.data or None
    if parsed.out:
        refuse_out(out)
    if folder.is_dir():
        refuse_flags(run, parsed.encoder, parsed.weights, parsed.image_size)
        score = Run(folder).evaluate(what, data, parsed.device, parsed.classes, **settings)
    else:
        encoder = load(run, parsed.encoder, parsed.weights, parsed.image_size).to(pick_device(parsed.device))
        score = evaluate(what, encoder, open_source(what, settings, data, classes=parsed.classes), **settings)
    if parsed.out:
        write_atomically(out, json.dumps(score.record(), indent=2) + "\n")
    show(score, f"{what} of {run} on {score.source['data']}")


def refuse_out(path: Path) -> None:
    """Refuse to write a score where that cannot be done, over a file of a run, and over all else but a score."""
    from effssl.run import OWN, is_score

    check_output(path, overwrite=True)
    if path.name in OWN and (path.parent / "config.yaml").is_file():
        raise RequestError(f"{path} is a file of the run itself; choose another --out")
    try:
        free = not path.exists() or (path.is_file() and is_score(json.loads(path.read_bytes())))
    except (OSError, ValueError):  # it cannot be read, or is no JSON
        free = False
    if not free:
        raise RequestError(f"{path} is there and is not a score; choose another --out")


def show(score: Any, title: str) -> None:
    """A score as tables: its value, what else was measured, its constants."""
    from effssl.runtime.progress import table

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
    rows += [(key.replace("_", " "), f"{value:,}") for key, value in score.source.items() if key.endswith("_images")]
    table(title, ("", "value"), rows)
    if sets := score.constants.get("sets"):
        shown = [(n, f"{s['value']:.2f} %", s["metric"], f"{s['C']:.3g}", s["split"]) for n, s in sets.items()]
        table("each by its own rule", ("set", "value", "metric", "C", "split"), shown)
