"""Draw figures. Each module draws one kind of figure with the functions `applies(document)` and `draw(document)`."""
