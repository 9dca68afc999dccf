"""The reasons that `bench explain` knows, a file for each topic. A reason is one function with `@reason`."""
