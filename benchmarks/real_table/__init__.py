"""The table of real models: prompts, rows, cells, how they are served, the numbers made of them."""
