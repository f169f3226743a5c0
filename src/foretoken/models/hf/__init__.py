"""Any decoder-only model, run through the modelling code of transformers."""
