"""The reasons that `bench explain` knows, one file per topic. A reason is one function with `@reason`."""
