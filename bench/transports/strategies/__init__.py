"""Each public module in this package defines one strategy of training.

A strategy divides the model among ranks and exchanges data in each step.
"""
