"""What processes of one run share: ranks, shards, gathered records, and word of a failure."""
