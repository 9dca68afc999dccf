"""Figures: one file each, `applies(document)` and `draw(document)`."""
