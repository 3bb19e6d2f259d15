"""Rows are appended; a new column rewrites the file; a row that a power cut left incomplete is skipped."""

import csv
import resource

import pytest

from apo_lightning.errors import ConfigError
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


def test_half_a_row_on_a_full_disk_is_an_error_that_names_the_file(tmp_path):
    logger = MetricsCSV(tmp_path, [])
    logger.log_metrics({"train/reward": 0.5}, step=1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (logger.path.stat().st_size + 4, limits[1]))
    try:
        with pytest.raises(OSError, match=r"metrics\.csv"):
            logger.log_metrics({"train/reward": 0.75}, step=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert logger.path.read_bytes().endswith(b"\n2,0.")


def written(folder):
    logger = MetricsCSV(folder, [])
    for step in (1, 2, 3):
        logger.log_metrics({"train/reward": 0.25 * step}, step=step)
        logger.log_metrics({"val/sums/pass@1": 0.5}, step=step)
    return logger.path


@pytest.mark.parametrize(
    ("damage", "left", "said"),
    [
        (lambda lines: lines, [1, 2, 3], None),
        (
            lambda lines: [*lines[:3], b"\0" * 200_000 + b"\r\n", *lines[3:]],
            [1, 2, 3],
            "1 rows are damaged, and 0 of 3",
        ),
        (
            lambda lines: [*lines[:3], lines[3][:4], *lines[4:]],
            [1, 3],
            "1 rows are damaged, and 1 of 3 steps have no row, the first is 2",
        ),
        (lambda lines: [*lines[:3], b"2,\xff\xfe,\r\n", *lines[4:]], [1, 3], "1 rows are damaged, and 1 of 3"),
        (lambda lines: lines[:3], [1], "0 rows are damaged, and 2 of 3 steps have no row, the first is 2"),
        (lambda lines: [b"\0" * 100], [], "0 rows are damaged, and 3 of 3"),
        (lambda lines: [], [], "0 rows are damaged, and 3 of 3"),
    ],
)
def test_rows_that_are_damaged_or_missing_are_said_and_the_others_kept(tmp_path, capsys, damage, left, said):
    path = written(tmp_path)
    path.write_bytes(b"".join(damage(path.read_bytes().splitlines(keepends=True))))
    rows = rows_until(tmp_path, step=3, validated_step=3)
    assert [int(row["step"]) for row in rows if "train/reward" in row] == left
    printed = capsys.readouterr().out
    assert printed.startswith(f"{path}: {said}") if said else not printed
    path.unlink()
    rows_until(tmp_path, step=3, validated_step=3)
    assert "3 of 3 steps have no row" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["a\u2028b", "a\nb", "a\0", ""])
def test_a_name_that_no_column_can_have_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="cannot be a column"):
        MetricsCSV(tmp_path, []).log_metrics({name: 1.0}, step=1)
