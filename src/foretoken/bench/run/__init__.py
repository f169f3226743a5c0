"""A benchmark's run: prompt by prompt, resumable, in shards, over a cluster."""
