"""Owns the gated feed-forward block, gate and up merged; refuses activations but SiLU."""

from torch import Tensor, nn

import ir_core as ir
from serve_shim.models.parameters import ParameterMaker
from serve_shim.models.rank_columns import multiply_over_ranks
from serve_shim.models.sharding import ShardingPlan


class Mlp(nn.Module):
    """`down(silu(gate(x)) * up(x))`; rows of `gate_up_proj` are gate, then up.

    A rank has some of the gates, and ranks join what `down_proj` makes of them.
    """

    def __init__(self, plan: ShardingPlan, make: ParameterMaker) -> None:
        super().__init__()
        config, self.ranks = plan.local, plan.inner_columns
        inner, hidden, bias = config.intermediate_size, config.hidden_size, config.mlp_bias
        self.gate_up_proj = make.matrix("gate_up_proj", hidden, 2 * inner, bias=bias)
        columns = sum(self.ranks.columns) or inner
        self.down_proj = make.matrix("down_proj", columns, plan.hidden.width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map [T, hidden] to [T, hidden]."""
        gated = ir.ops.silu_and_mul(self.gate_up_proj(x))
        return multiply_over_ranks(self.down_proj, gated, self.ranks)
