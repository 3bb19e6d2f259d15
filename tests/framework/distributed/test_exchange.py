"""Rows change ranks and come back, between two real processes."""

import torch

from apo_lightning.distributed.gathering import Exchange
from processes import in_a_group

CPU = torch.device("cpu")
# Rank 0 has three items of 1, 2 and 3 rows, and gives the second away; rank 1 has two and gives both.
DESTINATIONS = [[0, 1, 0], [0, 0]]
SIZES = [[1, 2, 3], [2, 1]]
ROWS = [[0, 10, 11, 20, 21, 22], [100, 101, 110]]
WORKED_ON = [[0, 20, 21, 22, 100, 101, 110], [10, 11]]


def on_each_rank(rank, folder):
    exchange = Exchange(DESTINATIONS, SIZES, rank, CPU)
    own = torch.tensor(ROWS[rank])
    assert exchange.send(own).tolist() == WORKED_ON[rank]
    assert torch.equal(exchange.send_back(exchange.send(own)), own)
    wide = torch.stack([own.float(), torch.full((len(own),), torch.nan)], dim=1)
    torch.testing.assert_close(exchange.send_back(exchange.send(wide)), wide, rtol=0, atol=0, equal_nan=True)
    flags = own % 2 == 0
    assert exchange.send(flags).tolist() == [row % 2 == 0 for row in WORKED_ON[rank]]
    # A rank that gives everything away, and gets nothing.
    away = Exchange([[1, 1, 1], [1, 1]], SIZES, rank, CPU)
    assert len(away.send(own)) == (0 if rank == 0 else 9)
    assert torch.equal(away.send_back(away.send(own)), own)


def test_rows_reach_the_rank_that_works_on_them_and_come_back_in_order(tmp_path):
    in_a_group(on_each_rank, tmp_path)


def test_one_process_keeps_its_rows_as_they_are():
    rows = torch.arange(3)
    alone = Exchange([[0, 0]], [[1, 2]], 0, CPU)
    assert alone.send(rows) is rows
    assert alone.send_back(rows) is rows
