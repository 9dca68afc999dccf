"""Figures. Each file draws one kind of figure, and has the functions `applies(document)` and `draw(document)`."""
