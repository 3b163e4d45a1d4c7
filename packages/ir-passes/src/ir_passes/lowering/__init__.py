"""From IR ops to the implementations that run: selection, tracing, removal of needless clones."""
