"""Small tools that every package may use: the terminal, files, number formats, hashes, clocks, the process group."""
