"""Structured output: what a request may write, as masks over the vocabulary."""
