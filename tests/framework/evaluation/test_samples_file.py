"""A file that was stopped anywhere goes on as if it had not been."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apo_lightning.common.identity import FORMAT, read_sealed, sealed
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.samples_file import (
    VERSION,
    PlannedSample,
    SamplesFile,
    read_samples,
    require_same_identity,
)
from apo_lightning.types import Prompt
from factories import make_sample

IDENTITY = {"benchmark": "sums", "settings": {"temperature": 1.0, "seed": 1}}


def planned(num_problems, num_samples):
    prompts = [
        Prompt(id=f"p{i}", problem=f"{i} + 1", answer=str(i + 1), text="", token_ids=(1,)) for i in range(num_problems)
    ]
    return [
        PlannedSample(prompt=prompt, sample=i, seed=hash((prompt.id, i)) & 0xFFFF)
        for prompt in prompts
        for i in range(num_samples)
    ]


def drawn(plan):
    return [
        make_sample(
            prompt_id=p.prompt.id,
            sample=p.sample,
            seed=p.seed,
            extracted=p.prompt.answer,
            logprob=-0.1 - p.seed / 7,
            entropy=None,
            outside_support=0.25,
            text='"quoted"\nπ \ud800',
        )
        for p in plan
    ]


def write(folder, plan, batch, until=None, identity=IDENTITY):
    """Go on from wherever the file ends; stop after `until` samples."""
    file = SamplesFile(folder, identity, plan, batch)
    done = file.open()
    for start in range(done, len(plan), batch):
        if until is not None and start >= until:
            break
        file.append(drawn(plan[start : start + batch]))
    file.close()
    return done


PLAN = planned(5, 3)


@settings(max_examples=60)
@given(cut=st.integers(0, 4000), batch=st.sampled_from([1, 2, 4, 15, 16]))
def test_cut_at_any_byte_the_file_ends_as_an_uninterrupted_one(cut, batch, tmp_path_factory):
    whole, broken = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("broken")
    write(whole, PLAN, batch)
    content = (whole / "samples.jsonl").read_bytes()
    write(broken, PLAN, batch)
    (broken / "samples.jsonl").write_bytes(content[:cut])
    done = write(broken, PLAN, batch)
    assert done == len(PLAN) or done % batch == 0
    assert (broken / "samples.jsonl").read_bytes() == content


def test_what_is_read_is_what_was_written(tmp_path):
    write(tmp_path, PLAN, 4)
    assert read_samples(tmp_path / "samples.jsonl") == drawn(PLAN)


OTHER = {**IDENTITY, "settings": {"temperature": 0.6, "seed": 1}}


def test_another_evaluation_is_refused_unless_there_is_no_sample(tmp_path):
    for identity in (IDENTITY, OTHER):
        file = SamplesFile(tmp_path, identity, PLAN, 4)
        assert file.open() == 0
        file.close()
    write(tmp_path, PLAN, 4, until=4, identity=OTHER)
    with pytest.raises(ConfigError, match=r"settings.temperature is 0.6 there and 1.0 here. Choose another output_dir"):
        SamplesFile(tmp_path, IDENTITY, PLAN, 4).open()


def test_an_edited_file_is_refused(tmp_path):
    write(tmp_path, PLAN, 4)
    path = tmp_path / "samples.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[1], lines[0], *lines[2:]]))
    with pytest.raises(ConfigError, match="holds sample 1 of 'p0' where sample 0 of 'p0' belongs"):
        SamplesFile(tmp_path, IDENTITY, PLAN, 4).open()


def test_a_verdict_that_was_changed_is_named(tmp_path):
    write(tmp_path, PLAN, 4)
    path = tmp_path / "samples.jsonl"
    content = path.read_bytes()
    [status] = {sample.status for sample in drawn(PLAN)}
    place = content.index(status.encode(), content.index(b"\n"))
    other = {"correct": b"incorrect", "incorrect": b"correct"}[status]
    path.write_bytes(content[:place] + other + content[place + len(status) :])
    for read in (SamplesFile(tmp_path, IDENTITY, PLAN, 4).open, lambda: read_samples(path)):
        with pytest.raises(ConfigError, match=r"samples\.jsonl:2: the sample has changed since it was written"):
            read()


@pytest.mark.parametrize("content", [b"", b"\0" * 200, b"[1]", b'{"benchmark": "sums"}'])
def test_a_damaged_record_of_an_evaluation_is_one_line(tmp_path, content):
    write(tmp_path, PLAN, 4)
    (tmp_path / "evaluation.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"evaluation\.json .*Choose another output_dir") as raised:
        SamplesFile(tmp_path, IDENTITY, PLAN, 4).open()
    assert "\n" not in str(raised.value)


def test_samples_of_unknown_origin_are_refused(tmp_path):
    write(tmp_path, PLAN, 4)
    (tmp_path / "evaluation.json").unlink()
    with pytest.raises(ConfigError, match=r"without its evaluation\.json"):
        SamplesFile(tmp_path, IDENTITY, PLAN, 4).open()


def test_two_processes_cannot_write_one_file(tmp_path):
    file = SamplesFile(tmp_path, IDENTITY, PLAN, 4)
    file.open()
    script = f"import fcntl; fcntl.flock(open({str(file.path)!r}, 'ab'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    assert b"BlockingIOError" in subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).stderr
    for identity in (IDENTITY, OTHER):  # there is no sample yet that would tell them apart
        with pytest.raises(ConfigError, match="another process is writing"):
            SamplesFile(tmp_path, identity, PLAN, 4).open()
    assert read_sealed(tmp_path / "evaluation.json", VERSION) == IDENTITY
    file.close()


def test_differences_are_found_however_deep(tmp_path):
    (tmp_path / "evaluation.json").write_bytes(sealed({FORMAT: VERSION, "a": {"b": {"c": "x"}, "d": [1]}}))
    (tmp_path / "samples.jsonl").write_text("a sample\n")
    require_same_identity(tmp_path, {"a": {"b": {"c": "x"}, "d": [1]}})
    with pytest.raises(ConfigError, match=r"a\.b\.c is x there and y here"):
        require_same_identity(tmp_path, {"a": {"b": {"c": "y"}, "d": [1]}})
    with pytest.raises(ConfigError, match=r"a\.d is \[1\] there and \[2\] here"):
        require_same_identity(tmp_path, {"a": {"b": {"c": "x"}, "d": [2]}})
