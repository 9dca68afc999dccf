"""Figures: one file each, with `applies(document)` and `draw(document)`."""
