"""Small tools for every package: the terminal, files, number formats, hashes, clocks, random states, the process group."""
