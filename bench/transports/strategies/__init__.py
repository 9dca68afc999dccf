"""Strategies of training, one file each. A strategy divides the model among ranks and exchanges data in each step."""
