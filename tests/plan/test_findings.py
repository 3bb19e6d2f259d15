"""What is unusual with a machine: each finding names a value and a remedy."""

from apo_lightning.common.formatting import GIB
from apo_plan.findings import Machine, disk_findings, memory_findings, thread_findings

SMALL = Machine(memory_bytes=8 * GIB, available_bytes=3 * GIB, num_cores=2)


def test_a_plan_above_free_memory_is_a_warning_and_above_all_memory_an_error():
    levels = [[finding.level for finding in memory_findings(SMALL, gib * GIB, 2)] for gib in (3, 4, 9)]
    assert levels == [[], ["warning"], ["error"]]


def test_checkpoints_that_do_not_fit_the_disk_name_the_folder_that_is_there(tmp_path):
    assert not [*disk_findings(tmp_path, 1)]
    (finding,) = disk_findings(tmp_path / "not" / "yet", 2**60)
    assert (finding.level, str(tmp_path) in finding.text, "not/yet" in finding.text) == ("error", True, False)


def test_threads_beyond_the_cores_are_told_how_many_would_fit():
    (finding,) = thread_findings(SMALL, 8, 2)
    assert "OMP_NUM_THREADS=1" in finding.text
    (finding,) = thread_findings(SMALL, 1, 8)
    assert finding.text.endswith(f"slow each other down: start {SMALL.num_cores} processes at most")
