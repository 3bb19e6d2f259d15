"""Tables and figures of runs and evaluations: `python report.py runs=outputs`; `--help` lists every option."""

from apo_lightning.run import report_from_command_line

if __name__ == "__main__":
    report_from_command_line()
