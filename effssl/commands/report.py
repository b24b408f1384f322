"""effssl report RUN …: one HTML page of a run, of several, or of a study."""

from __future__ import annotations


def report(
    runs: tuple[str, ...], /, out: str = "", images: int = 1000, device: str = "auto", shown: tuple[int, ...] = ()
) -> None:
    """Write the report of a run, a comparison of several or the report of a study, as one self-contained HTML file.

    Args:
        runs: a run folder, several to compare, or the results folder of a study
        out: file to write; default report.html in the folder, or comparison.html in the current folder for several runs
        images: number of images sampled for the map; 0 omits all sections with images
        device: of the encoder: auto, cpu, cuda, mps
        shown: channels shown as red, green and blue, counted from 1, or one as gray; default as trained
    """
    from effssl.report import write_report

    path = write_report(runs, out or None, images=images, device=device, shown=shown)
    print(f"report: {path} ({path.stat().st_size / 1e6:.1f} MB)")
