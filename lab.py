"""See collapse, measure it, fight it: `python lab.py`; `--help` lists every option."""

from apo_lightning.run import lab_from_command_line

if __name__ == "__main__":
    lab_from_command_line()
