"""One file per `bench <word>`: `arguments(parser)` declares its options, `main(args)` returns the exit code."""
