"""Train a policy: `python train.py algo=apo model=tiny` does what `apo train algo=apo model=tiny` does."""

import sys

from apo_lightning.run.command_line import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
