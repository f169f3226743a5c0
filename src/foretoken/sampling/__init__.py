"""Sampling parameters, and how they turn logits into probabilities."""
