"""Parts: what changes a training step and is not in the algorithm box. Each is one file that nothing else names."""
