"""Formats: one file each, `render(report) -> str`. The file's name is the value of `--format`."""
