"""What a compiled model is when it runs: plain data and code, without a graph or a compiler.

A warm start imports nothing else of the compile stack.
"""
