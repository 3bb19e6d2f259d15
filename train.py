"""Train a policy: `python train.py algo=apo model=smollm2_135m` is `apo train algo=apo model=smollm2_135m`."""

import sys

from apo_lightning.run.command_line import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
