"""The OpenAI wire format: requests in, bodies and chunks out; knows no socket."""
