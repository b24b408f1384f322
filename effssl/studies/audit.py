"""Whether documented results follow from the stored values: every mean, interval and verdict is computed again.

python -m effssl.studies.audit                  compares; ends with code 1 and a list if anything differs
python -m effssl.studies.audit --write          writes the pages again from the stored values
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from effssl.runtime.errors import RequestError
from effssl.runtime.files import write_atomically
from effssl.studies.overview import overview, stored
from effssl.studies.report import markdown, record, write_page
from effssl.studies.results import StudyResults, read_record

DOCS = Path("docs/results")
BEGIN, END = "<!-- studies: python -m effssl.studies.audit --write -->\n", "<!-- end of studies -->\n"


def differences(root: Path) -> list[str]:
    """What in a folder of results is not what its stored values give, one line each."""
    found = [line for folder, results in _results(root) for line in _page_differences(folder, results)]
    page = root / "README.md"
    if page.is_file() and page.read_text() != with_overview(page, root):
        found.append(f"{page}: the table of all studies is not that of the stored results")
    return found


def _results(root: Path) -> list[tuple[Path, StudyResults]]:
    found = list(stored(root))
    if not found:
        raise RequestError(f"no results of studies in {root}; name the folder that holds E06-cpu/results.json")
    return found


def _page_differences(folder: Path, results: StudyResults) -> list[str]:
    """What differs in results.json and README.md of one study."""
    # As JSON, where tuples are lists, as they are in the file.
    computed, found = json.loads(json.dumps(record(results))), read_record(folder)
    lines = [
        f"{folder / 'results.json'}: {key} is not what its runs give"
        for key in computed.keys() | found.keys()
        if computed.get(key) != found.get(key)
    ]
    page = folder / "README.md"
    if not page.is_file():
        return [*lines, f"{page} is missing"]
    expected, actual = markdown(results).splitlines(), page.read_text().splitlines()
    wrong = [line for line in actual if line not in expected] or (["an order of lines"] if expected != actual else [])
    return lines + [f"{page}: not what results.json gives: {line}" for line in wrong[:3]]


def with_overview(page: Path, root: Path) -> str:
    """A page with the present table of all studies between its two marks."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise RequestError(f"{page} has no place for the table of studies: {BEGIN.strip()} … {END.strip()}")
    return f"{before}{BEGIN}\n{overview(root)}\n{END}{after}"


def write(root: Path) -> None:
    """Write all pages of a folder again from the stored values."""
    for folder, results in _results(root):
        write_page(results, folder)
    page = root / "README.md"
    if page.is_file():
        write_atomically(page, with_overview(page, root))


def main(args: list[str]) -> int:
    """Audit a folder of results, docs/results by default."""
    folders = [Path(arg) for arg in args if arg != "--write"]
    root = folders[0] if folders else DOCS
    try:
        if "--write" in args:
            write(root)
        found = differences(root)
        count = len(_results(root))
    except RequestError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for line in found:
        print(line)
    print(f"{count} studies in {root}: {len(found)} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
