"""Structural patterns over IR ops, and the passes that replace what they match."""
