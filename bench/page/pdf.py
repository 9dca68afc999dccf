"""Write a page as PDF with a headless Chromium."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from bench.core.errors import MeasurementError, NotInstalledError

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_MOST_S = 120


def write(html: str, path: Path) -> None:
    """Print the page to a file.

    Raises NotInstalledError without Chromium, and MeasurementError if Chromium writes no file.
    """
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if program is None:
        raise NotInstalledError("no PDF can be written: Chromium is not installed: install it, or use --html FILE")
    with tempfile.TemporaryDirectory() as folder:
        page, printed = Path(folder, "page.html"), Path(folder, "page.pdf")
        page.write_text(html, encoding="utf-8")
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses to start as root with its sandbox
        options = ["--headless", *sandbox, "--disable-gpu", "--no-pdf-header-footer", f"--user-data-dir={folder}"]
        command = [program, *options, "--virtual-time-budget=5000", f"--print-to-pdf={printed}", page.as_uri()]
        try:
            subprocess.run(command, capture_output=True, timeout=_MOST_S, check=False)
        except subprocess.TimeoutExpired:
            raise MeasurementError(f"no PDF was written: {program} did not end within {_MOST_S} s") from None
        if not printed.is_file():
            raise MeasurementError(f"no PDF was written: {program} printed nothing; use --html FILE")
        shutil.copyfile(printed, path)
