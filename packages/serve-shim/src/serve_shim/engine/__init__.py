"""Continuous batching over a paged KV cache; import from the modules, this package stays light."""
