"""The plan of a run before it starts: its memory, its time, and problems that would stop it."""
