"""effssl report RUN …: one HTML page of a run, of several, or of a study."""

from __future__ import annotations


def report(runs: tuple[str, ...], /, out: str = "", images: int = 1000, device: str = "auto") -> None:
    """Draw a run as one self-contained HTML file; compare several; show a study.

    Args:
        runs: a run folder, several to compare, or the folder of a study
        out: file to write; default report.html in the folder, comparison.html here for several runs
        images: images on the map, sampled; 0 leaves out everything that needs images
        device: where the encoder runs: auto, cpu, cuda, mps
    """
    from effssl.report import write_report

    made = write_report(runs, out or None, images=images, device=device)
    print(f"report: {made} ({made.stat().st_size / 1e6:.1f} MB)")
