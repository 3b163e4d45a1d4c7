"""A distribution outside the tree: one op, one implementation of a shipped op, one platform."""
