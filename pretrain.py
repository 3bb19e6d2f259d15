"""Make a base model of the laboratory: `python pretrain.py data=locks`; `--help` lists every option."""

from apo_lightning.run import pretrain_from_command_line

if __name__ == "__main__":
    pretrain_from_command_line()
