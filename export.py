"""A checkpoint as a Hugging Face folder: `python export.py run=outputs/…/… checkpoint=best`."""

from apo_lightning.run import export_from_command_line

if __name__ == "__main__":
    export_from_command_line()
