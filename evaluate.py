"""Measure a policy: `python evaluate.py benchmark=math500` does what `apo evaluate benchmark=math500` does."""

import sys

from apo_lightning.run.command_line import main

if __name__ == "__main__":
    main(["evaluate", *sys.argv[1:]])
