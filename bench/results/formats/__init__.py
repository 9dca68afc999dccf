"""Text formats: one file each, `render(document) -> str`."""
