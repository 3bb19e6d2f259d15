"""The cells of the paper's tables and figures: what they are, whether they are done, and who works on them."""
