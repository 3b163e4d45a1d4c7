"""Owns one decoder layer and its residual stream."""

from torch import Tensor, nn

from serve_shim.models.attention import Attention
from serve_shim.models.attention_step import AttentionStep
from serve_shim.models.mlp import Mlp
from serve_shim.models.parameters import ParameterMaker
from serve_shim.models.rms_norm import RmsNorm
from serve_shim.models.sharding import ShardingPlan


class DecoderLayer(nn.Module):
    """Norm, attention, norm, feed-forward; each norm also adds the branch before it."""

    def __init__(
        self, plan: ShardingPlan, layer: int, cos_sin: Tensor, make: ParameterMaker
    ) -> None:
        super().__init__()
        size, epsilon = plan.config.hidden_size, plan.config.rms_norm_eps
        self.input_norm = RmsNorm(size, epsilon, make)
        self.attention = Attention(plan, layer, cos_sin, make.at("attention"))
        self.post_attention_norm = RmsNorm(size, epsilon, make)
        self.mlp = Mlp(plan, make.at("mlp"))

    def forward(
        self, x: Tensor, residual: Tensor | None, positions: Tensor, step: AttentionStep
    ) -> tuple[Tensor, Tensor]:
        """Return this layer's branch [T, hidden] and the residual to add it to.

        `residual` is None in the first layer, where x itself becomes the residual; later both
        arguments are donated.
        """
        if residual is None:
            x, residual = self.input_norm(x), x
        else:
            x, residual = self.input_norm.add(x, residual)
        x = self.attention(x, positions, step)
        x, residual = self.post_attention_norm.add(x, residual)
        return self.mlp(x), residual
