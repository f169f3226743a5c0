"""Applications: what else is drafted and verified than tokens, on top of `LLM`."""
