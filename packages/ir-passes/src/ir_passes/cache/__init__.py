"""The compile cache: programs of models on disk, found without a trace, verified before use."""
