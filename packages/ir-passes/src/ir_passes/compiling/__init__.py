"""From a traced model to programs that run: ranges, pieces, stitching, the callable, its report."""
