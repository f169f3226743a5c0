"""Many requests at once: the sequence table, stopping, statistics."""
