"""Rows are appended; a new column rewrites the file; a row that a power cut left incomplete is skipped."""

import csv

from apo_lightning.run.metrics_csv import MetricsCSV, rows_until


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_without_a_new_column_is_appended_and_another_writes_the_file_anew(tmp_path):
    logger = MetricsCSV(tmp_path, [])
    logger.log_metrics({"train/reward": 0.5, "train/loss": 1.0}, step=1)
    written = logger.path.stat().st_ino
    before = logger.path.read_bytes()
    logger.log_metrics({"train/reward": 0.75}, step=2)
    assert logger.path.stat().st_ino == written
    assert logger.path.read_bytes().startswith(before)
    logger.log_metrics({"val/sums/pass@1": 0.25}, step=2)
    assert logger.path.stat().st_ino != written
    assert read(logger.path) == [
        {"step": "1", "train/loss": "1.0", "train/reward": "0.5", "val/sums/pass@1": ""},
        {"step": "2", "train/loss": "", "train/reward": "0.75", "val/sums/pass@1": ""},
        {"step": "2", "train/loss": "", "train/reward": "", "val/sums/pass@1": "0.25"},
    ]


def test_a_run_that_goes_on_writes_the_rows_of_its_beginning_again(tmp_path):
    first = MetricsCSV(tmp_path, [])
    for step in (1, 2, 3):
        first.log_metrics({"train/reward": 0.1 * step}, step=step)
    with first.path.open("ab") as file:
        file.write(b"4,0.")  # the beginning of a row
    second = MetricsCSV(tmp_path, rows_until(tmp_path, step=2, validated_step=None))
    second.log_metrics({"train/reward": 0.9}, step=3)
    assert [(row["step"], row["train/reward"]) for row in read(second.path)] == [
        ("1", "0.1"),
        ("2", "0.2"),
        ("3", "0.9"),
    ]
