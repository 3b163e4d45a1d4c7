"""How the model of a server is compiled before the first request."""
