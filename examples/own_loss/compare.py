"""Prints exact pass@k after the last step of every run below multirun/."""

from pathlib import Path

import pandas
import yaml

COLUMNS = ["step", "val/locks/exact/pass@1", "val/locks/exact/pass@64"]

rows = {}
for path in sorted(Path("multirun").rglob("metrics.csv")):
    overrides = yaml.safe_load((path.parent / ".hydra" / "overrides.yaml").read_text())
    typed = dict(override.split("=", 1) for override in overrides)
    name = f"{typed['algo']} seed {typed['seed']}" if "seed" in typed else typed["algo"]
    rows[name] = pandas.read_csv(path)[COLUMNS].dropna().iloc[-1]
print(pandas.DataFrame(rows).T.round(3))
