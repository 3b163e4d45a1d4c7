"""A distribution outside the tree: an op, an implementation, a platform, two backends."""
