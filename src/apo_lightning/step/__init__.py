"""From scored completions to optimizer steps: the table of a step, its mini-batches, their gradient."""
