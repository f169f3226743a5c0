"""Recommends a decoding method for a model, texts and machine: what applies, screened, then
timed."""
