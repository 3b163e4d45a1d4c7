"""Owns products over columns that ranks divide; refuses to know what the columns are.

Ranks multiply the columns that they hold and sum what comes out, which cuts each sum where a rank's
columns end. Where sums must not depend on the number of ranks they join the columns, multiply all
of them with some rows each, and join the results: more is sent, and no sum is cut.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

import ir_core as ir
from serve_shim.models.matrix import Matrix


class RankColumns(NamedTuple):
    """How so many ranks divide a product: how many columns each holds and rows each computes.

    Neither is there where every rank computes all rows, from its own columns.
    """

    num_ranks: int
    columns: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()


def multiply_over_ranks(matrix: Matrix, x: Tensor, ranks: RankColumns) -> Tensor:
    """The product [T, rows] of all ranks' columns, given this rank's `x` [T, width]."""
    if ranks.num_ranks == 1:
        return matrix(x)
    if not ranks.rows:
        return ir.ops.all_reduce(matrix(x), "tp")
    return join_columns(matrix(join_columns(x, ranks.columns)), ranks.rows)


def join_columns(x: Tensor, counts: Sequence[int]) -> Tensor:
    """The first `counts[rank]` columns of every rank's `x` [T, width], beside each other."""
    num_rows, width = x.shape
    joined = ir.ops.all_gather(x, len(counts) * num_rows, "tp")
    parts = joined.view(len(counts), num_rows, width).unbind()
    return torch.cat([part[:, :count] for part, count in zip(parts, counts, strict=True)], dim=1)
