"""Compute statistics, comparisons and reports from records, with pure functions."""
