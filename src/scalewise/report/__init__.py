"""A sweep's answer for people (Markdown, plots, terminal) and for programs (JSON, CSV)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalewise.report import plot_style
    from scalewise.report.builder import (
        ReportFiles,
        ReportFolderError,
        build,
        print_console,
        report_sections,
    )
    from scalewise.report.console import comparison_text, show_doctor
    from scalewise.report.export import results_csv, results_json
    from scalewise.report.study import build_study

__all__ = [
    "ReportFiles", "ReportFolderError", "build", "build_study", "comparison_text", "plot_style",
    "print_console", "report_sections", "results_csv", "results_json", "show_doctor",
]  # fmt: skip

_HOMES = {
    "builder": ("ReportFiles", "ReportFolderError", "build", "print_console", "report_sections"),
    "console": ("comparison_text", "show_doctor"),
    "export": ("results_csv", "results_json"),
    "study": ("build_study",),
}


def __getattr__(name: str) -> Any:
    """Load what is asked for: drawing takes a second to import, and a comparison draws nothing."""
    if name == "plot_style":
        return import_module("scalewise.report.plot_style")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"scalewise.report.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
