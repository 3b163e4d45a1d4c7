"""The ranks of a server: how they start, what they are told, and how their end is seen."""
