"""Work across the processes of a run: ranks, shards, gathered records and detection of failed ranks."""
