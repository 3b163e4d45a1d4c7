"""Passes, lowering and the compile stack that run on the IR."""
