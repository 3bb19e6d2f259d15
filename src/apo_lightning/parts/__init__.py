"""Parts: what changes a training step and is not in the algorithm box. Each is one file, which `order` alone names."""
