"""effssl study: the experiments of the paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from effssl.commands.one_line import parse_command
from effssl.runtime.errors import RequestError, RunFailed, did_you_mean
from effssl.runtime.files import check_writable
from effssl.runtime.private_paths import strip_flag

if TYPE_CHECKING:
    from effssl.studies.scales import Sources

Scale = Literal["smoke", "cpu", "paper"]
RESULTS = ("studies", "docs/results")  # where results are looked for


def study_(args: list[str]) -> None:
    """list, run or show."""
    what, rest = (args[0], args[1:]) if args else ("", [])
    verbs: dict[str, Callable[..., Any]] = {"list": study_list, "run": StudyRun, "show": study_show}
    if what in ("", "-h", "--help"):
        print("usage: effssl study list | effssl study run NAME [options] | effssl study show NAME")
        return
    if what not in verbs:
        raise RequestError(f"unknown {what!r}{did_you_mean(what, verbs)}; use effssl study list, run or show")
    parsed = parse_command(verbs[what], rest, f"effssl study {what}")
    if isinstance(parsed, StudyRun):
        study_run(parsed)


def study_list(out: str = "") -> None:
    """List all studies: tables and figures of the paper, and our own; with the results in a folder.

    Args:
        out: folder of results; by default `studies`, or docs/results of a checkout where there is no such folder
    """
    from effssl.runtime.progress import table
    from effssl.studies import all_studies
    from effssl.studies.overview import HEAD, WORDS, summaries

    folder = Path(out or next((name for name in RESULTS if Path(name).is_dir()), RESULTS[0]))
    if out and not folder.is_dir():
        raise RequestError(f"no folder of results at {out}; effssl study run writes one")
    studies = all_studies()
    rows = [
        (name, studies[name].title, studies[name].source, scale, seeds, "/".join(verdicts) if seeds else "")
        for name, found in summaries(folder).items()
        for scale, seeds, *verdicts in found
    ]
    # One column for all verdicts: a terminal has 80 characters.
    table(f"studies, results in {folder}; claims {' / '.join(WORDS)}", ("", "", "paper", *HEAD[:2], "claims"), rows)


@dataclass(frozen=True)
class StudyRun:
    """Run the arms of a study that are not complete, and write table, claims and figure."""

    name: tyro.conf.Positional[str]
    """E01 … E20 of the paper, C01 … C05 against compute, B01 newer base methods"""
    scale: Scale = "cpu"
    """smoke takes seconds per arm, cpu minutes, paper is the published setting"""
    seeds: int = 1
    """runs per arm"""
    jobs: int = 2
    """runs at a time; 0 runs them one after another in this process"""
    out: str = "studies"
    """folder for runs and results"""
    images: str = ""
    """folder of photographs with train/ and val/, where the study needs one: Imagenette, or ImageNet itself"""
    voc: str = ""
    """folder in VOC layout, for detection"""
    sets: str = ""
    """labeled data sets for transfer, comma-separated: cifar10=cifar10,flowers=path/to/flowers"""
    maps: str = ""
    """saliency maps, for E02"""


def study_run(request: StudyRun) -> None:
    """Run a study, print its results and write them to its folder."""
    from effssl.studies import load
    from effssl.studies.plan import Setup
    from effssl.studies.report import print_results, write
    from effssl.studies.results import StudyResults, environment
    from effssl.studies.runner import run_study
    from effssl.studies.scales import Sources

    if request.seeds < 1 or request.jobs < 0:
        raise RequestError("--seeds is at least 1 and --jobs at least 0")
    study, out = load(request.name), Path(request.out)
    check_writable(out)
    sources = Sources(request.images, request.voc, request.sets, request.maps)
    results = run_study(study, Setup(request.scale, request.seeds, out, sources), request.jobs)
    command = published_command(study.name, request, sources)
    found = StudyResults(study, request.scale, results, command, environment(threads_per_run(request.jobs)))
    print_results(found)
    folder = write(found, out / f"{study.name}-{request.scale}")
    shown = f"effssl study show {study.name} --scale {request.scale} --out {request.out}"
    print(f"written: {folder}   show it again: {shown}")
    failed = [result for result in results if result.failed]
    if failed:
        example = f"{failed[0].run.arm.name}: {failed[0].failed}"
        raise RunFailed(f"{len(failed)} of {len(results)} runs failed, e.g. {example}")


def threads_per_run(jobs: int) -> int:
    """How many threads each of `jobs` runs at a time has; 0 jobs run in this process."""
    from effssl.runtime.processes import child_environment

    if jobs:
        return int(child_environment(jobs)["OMP_NUM_THREADS"].split(",")[0])
    import torch

    return torch.get_num_threads()


def published_command(name: str, request: StudyRun, sources: Sources) -> str:
    """The command line for the results, with names of files and folders but not their directories."""
    command = f"effssl study run {name} --scale {request.scale} --seeds {request.seeds} --jobs {request.jobs}"
    for flag, value in vars(sources).items():
        if value:
            command += f" --{flag} " + strip_flag(value)
    return command


def study_show(name: str, /, scale: Scale = "cpu", out: str = "studies") -> None:
    """Show the results of a study.

    Args:
        name: E01 … E20 of the paper, C01 … C05 against compute, B01 newer base methods
        scale: the scale it was run at
        out: the folder it was run in
    """
    from effssl.studies import load
    from effssl.studies.report import show

    study = load(name)
    show(study, Path(out) / f"{study.name}-{scale}")
