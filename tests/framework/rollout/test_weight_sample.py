import torch
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.rollout.weight_sample import NUM_COLUMNS, HeldPart, WeightSample, not_as_sent


@given(st.integers(1, 300), st.integers(0, 1000))
def test_in_time_every_column_is_looked_at(num_columns, version):
    samples = [WeightSample.of(torch.zeros(2, num_columns), version + later) for later in range(num_columns)]
    assert {column for sample in samples for column in sample.columns} == set(range(num_columns))
    assert all(min(num_columns, NUM_COLUMNS) <= len(sample.columns) < 2 * NUM_COLUMNS for sample in samples)


@given(st.integers(1, 100), st.integers(0, 99), st.integers(1, 8))
def test_slices_share_the_sampled_columns_among_them(width, version, num_slices):
    sample = WeightSample.of(torch.arange(width * num_slices).float()[None], version)
    found = [list(sample.columns[sample.within(first, width)]) for first in range(0, width * num_slices, width)]
    assert [column for part in found for column in part] == list(sample.columns)
    assert all(first * width <= column < (first + 1) * width for first, part in enumerate(found) for column in part)


def held(weight, version):
    sample = WeightSample.of(weight, version)
    return HeldPart("w", 0, slice(None), sample.values.clone())


def test_a_sample_outlives_the_weight_it_was_taken_of():
    weight = torch.ones(4, 4)
    sample = WeightSample.of(weight, 0)
    weight.zero_()
    assert sample.values.eq(1).all()


def test_one_last_bit_is_seen_and_what_no_matrix_unit_sees_is_not():
    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.randn(8, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
        weight[0, 0] = torch.finfo(torch.float32).tiny / 4
        sample = {"w": WeightSample.of(weight, 3)}
        part = held(weight, 3)
        assert not_as_sent(sample, [part]) == []
        part.values[0, 0] = 0.0
        assert not_as_sent(sample, [part]) == []
        part.values[7, 15] *= 1 + torch.finfo(dtype).eps
        assert not_as_sent(sample, [part]) == ["w"]


def test_a_part_of_another_size_and_a_nan_are_not_as_sent():
    sample = {"w": WeightSample.of(torch.zeros(8, 16), 0)}
    assert not_as_sent(sample, [HeldPart("w", 0, slice(None), torch.zeros(8, 15))]) == ["w"]
    assert not_as_sent(sample, [HeldPart("w", 4, slice(None), torch.zeros(8, 16))]) == ["w"]
    assert not_as_sent(sample, [HeldPart("w", 0, slice(None), torch.full((8, 16), torch.nan))]) == ["w"]
    assert not_as_sent(sample, [HeldPart("w", 4, slice(8), torch.zeros(4, 8))]) == []
