"""The reasons that `linkbench explain` knows, one file per topic. Each reason is a function with `@reason`."""
