"""Drafters' weights: their layers, their losses, their checkpoints."""
