"""Formats: one file each, `render(report) -> str`. The file's name is the word behind `--format`."""
