"""Small tools for all packages: terminal, files, number formats, hashes, clocks, random states, process group."""
