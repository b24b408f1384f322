"""All studies with what is known about them: the scale they were run at, their seeds, and the verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from effssl.runtime.errors import RequestError
from effssl.runtime.reading import describe
from effssl.studies import all_studies
from effssl.studies.report import verdicts
from effssl.studies.results import StudyResults, read_results

HEAD = ("scale", "seeds", "held", "refuted", "not decided", "no verdict")
WORDS = HEAD[2:]
NOT_RUN = ("not run", "", "", "", "", "")


def stored(root: Path) -> Iterator[tuple[Path, StudyResults]]:
    """The results in a folder, which holds one folder for each study and scale."""
    for name, study in all_studies().items():
        for path in sorted(root.glob(f"{name}-*/results.json")):
            yield path.parent, read_results(study, path.parent)


def summary(found: StudyResults) -> tuple[str, ...]:
    """Scale, seeds and the number of claims with each verdict."""
    least, most = found.seeds
    counts = Counter(judged.verdict for judged in verdicts(found))
    return found.scale, f"{least}" if least == most else f"{least} to {most}", *(str(counts[word]) for word in WORDS)


def summaries(root: Path) -> dict[str, list[tuple[str, ...]]]:
    """The summaries of every study, one for each scale that it was run at, by name."""
    found: dict[str, list[tuple[str, ...]]] = {name: [] for name in all_studies()}
    for folder, results in stored(root):
        try:
            found[results.study.name].append(summary(results))
        except (TypeError, LookupError, AttributeError, ValueError, ArithmeticError) as error:
            raise RequestError(f"{folder / 'results.json'} is damaged: {describe(error)}") from None
    return {name: rows or [NOT_RUN] for name, rows in found.items()}


def overview(root: Path) -> str:
    """The table of all studies for the documentation; those without results are named."""
    lines = ["| study | | " + " | ".join(HEAD) + " |", "|" + "---|" * (len(HEAD) + 2)]
    for name, rows in summaries(root).items():
        title = all_studies()[name].title
        for row in rows:
            link = name if row == NOT_RUN else f"[{name}]({name}-{row[0]}/README.md)"
            lines.append("| " + " | ".join((link, title, *row)) + " |")
    return "\n".join(lines) + "\n"
