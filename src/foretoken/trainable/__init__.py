"""Drafters' weights: layers, losses, estimates, checkpoints."""
