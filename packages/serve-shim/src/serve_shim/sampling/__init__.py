"""How the next token is chosen: the parameters of a request and the vectorised sampler."""
