"""Pure functions that compute statistics, comparisons and reports from records."""
