"""Each module is one command `linkbench <name>`.

The module's `arguments(parser)` adds the command's options. The module's `main(args)` runs the command.
"""
