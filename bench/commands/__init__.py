"""Each module is one command `linkbench <name>`.

The module's `arguments(parser)` adds the command's options. Its `main(args)` runs the command.
"""
