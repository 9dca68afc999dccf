"""Each module is one command `linkbench <name>`: `arguments(parser)` adds its options, `main(args)` runs it."""
