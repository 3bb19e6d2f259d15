"""Small tools for all packages: the terminal, files, number formats, hashes, clocks, random states, the process group."""
