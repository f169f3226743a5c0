"""Encoder–decoders, run natively: T5, BART, mBART, Marian."""
