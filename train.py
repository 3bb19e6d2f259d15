"""Train a policy: `python train.py algo=apo model=smollm2_135m trainer=cpu`; `--help` lists every option."""

from apo_lightning.run import train_from_command_line

if __name__ == "__main__":
    train_from_command_line()
