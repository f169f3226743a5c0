"""Models that write drafts: a small one, a part of the target, one with another tokenizer."""
