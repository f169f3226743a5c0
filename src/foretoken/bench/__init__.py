"""Measuring methods against plain decoding on the same target, and reporting the results."""
