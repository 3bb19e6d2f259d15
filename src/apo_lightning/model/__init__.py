"""The language model: loading, micro-batches, attention, adapters, the policy and its reference."""
