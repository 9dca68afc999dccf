"""Pure data and arithmetic that all other folders share. No module here imports from another folder of the suite."""
