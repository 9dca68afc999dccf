"""This folder contains only data and arithmetic, which all other folders share.

No module here imports from another folder of the suite.
"""
