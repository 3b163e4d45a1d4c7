"""Shows one layer of a model at every stage of compilation."""
