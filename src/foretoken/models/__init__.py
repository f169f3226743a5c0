"""Targets: the native transformer, the transformers adapter, their cache, and loading."""
