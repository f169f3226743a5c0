"""Searches: a method's fastest options, the layers a model drafts best without."""
