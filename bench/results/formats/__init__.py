"""Output formats. Each file has a function `render(report) -> str`, and its name is the value of `--format`."""
