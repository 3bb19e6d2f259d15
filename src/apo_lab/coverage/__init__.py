"""Oracle coverage: the share of a worked solution's tokens among the K most likely ones of a model."""
