"""Servers with an OpenAI interface, measured the same way."""
