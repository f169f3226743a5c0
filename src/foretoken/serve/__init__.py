"""An HTTP server with OpenAI's interface, under vLLM's names. The extra `serve` installs what it
needs; `app.application` makes an ASGI application of an `AsyncLLM`, and `run.serve` serves it."""
