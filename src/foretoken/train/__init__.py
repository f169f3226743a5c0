"""Training of drafters: data, batches, the loop, recipes, cards."""
