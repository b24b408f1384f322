"""effssl study: the experiments of the paper."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from effssl.runtime.errors import RequestError, RunFailed, did_you_mean
from effssl.runtime.files import check_room


def study_(args: list[str]) -> None:
    """list, run or show."""
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
    """All studies: tables and figures of the paper, and ours against compute."""
    from effssl.runtime.progress import table
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
        name: E01 … E20 of the paper, C01 … C05 against compute
        scale: smoke takes seconds per arm, cpu minutes, paper is the published setting
        seeds: runs per arm
        jobs: runs at a time; 0 runs them one after another in this process
        out: folder for runs and results
        images: folder of photographs with train/ and val/, where the study needs one: Imagenette, or ImageNet itself
        voc: folder in VOC layout, for detection
        sets: labelled sets for transfer, comma-separated: cifar10=cifar10,flowers=path/to/flowers
        maps: saliency maps, for E02
    """
    from effssl.studies import load
    from effssl.studies.plan import Sources
    from effssl.studies.report import print_results, write
    from effssl.studies.runner import run_study

    if seeds < 1 or jobs < 0:
        raise RequestError("--seeds is at least 1 and --jobs at least 0")
    about, folder = load(name), Path(out)
    check_room(folder)
    outcomes = run_study(about, scale, seeds, jobs, folder, Sources(images, voc, sets, maps))
    command = f"effssl study run {about.name} --scale {scale} --seeds {seeds} --jobs {jobs}"
    given = {"images": images, "voc": voc, "sets": sets, "maps": maps}
    for flag, value in given.items():  # folders by their names: where they lie is nobody's business
        if value:
            command += f" --{flag} " + ",".join(re.sub(r"[^=]*/", "", part.rstrip("/")) for part in value.split(","))
    print_results(about, outcomes)
    made = write(about, scale, outcomes, command, folder / f"{about.name}-{scale}")
    failed = [o for o in outcomes if o.failed]
    print(f"written: {made}   show it again: effssl study show {about.name} --scale {scale} --out {out}")
    if failed:
        raise RunFailed(
            f"{len(failed)} of {len(outcomes)} runs failed, e.g. {failed[0].job.arm.name}: {failed[0].failed}"
        )


def study_show(name: str, /, scale: Literal["smoke", "cpu", "paper"] = "cpu", out: str = "studies") -> None:
    """Show the results of a study.

    Args:
        name: E01 … E20 of the paper, C01 … C05 against compute
        scale: that it was run at
        out: folder that it was run in
    """
    from effssl.studies import load
    from effssl.studies.report import show

    show(load(name), Path(out) / f"{load(name).name}-{scale}")
