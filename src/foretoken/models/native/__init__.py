"""Llama, Mistral, Qwen2 and Qwen3, run with as few operations a layer as it can be."""
