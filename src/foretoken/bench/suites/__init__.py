"""Prompts: what a suite is, where its files come from, how they are read."""
