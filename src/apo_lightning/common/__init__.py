"""Small tools for every package: the terminal, files, number formats, hashes, clocks, the process group."""
