"""Measure a policy: `python evaluate.py benchmark=[aime2024,math500] model=qwen_math7b`; `--help` lists the options."""

from apo_lightning.run import evaluate_from_command_line

if __name__ == "__main__":
    evaluate_from_command_line()
