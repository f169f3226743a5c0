"""Measuring methods against plain decoding on the same target, and reporting what was found."""
