"""What all other folders share: pure data and arithmetic. Nothing here imports from another folder of the suite."""
