"""Strategies of training, one file each: the parts of the model on each rank, and the exchanges in a step."""
