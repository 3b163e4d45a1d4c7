"""Compiles a small model with each backend of the toy; prints what came of it as JSON.

Run in the environment that has the toy's wheel.
"""

import json
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import ir_core as ir
import ir_passes
from ir_passes.backends.registry import find_backend
from ir_passes.config import CompilationConfig

_HEADS, _SIZE, _HIDDEN = 2, 4, 8
_DIMS = {"ids": 0, "step.slots": 0}

ir.load_plugins()
toy_blend = ir.registry()["toy_blend"]


class Step(NamedTuple):
    """What a step tells attention."""

    table: Tensor
    lengths: Tensor
    starts: Tensor
    slots: Tensor


class Layer(nn.Module):
    """A norm in place, attention over a cache, two products."""

    def __init__(self, random: torch.Generator) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.randn(_HIDDEN, generator=random) / 4)
        self.qkv = nn.Parameter(torch.randn(3 * _HIDDEN, _HIDDEN, generator=random) / 4)
        self.out = nn.Parameter(torch.randn(_HIDDEN, _HIDDEN, generator=random) / 4)
        self.register_buffer("cache", torch.zeros(4, 2, _HEADS, 4, _SIZE))

    def forward(self, x: Tensor, residual: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        x, residual = ir.ops.fused_add_rms_norm.maybe_inplace(x, residual, self.norm, 1e-5)
        q, k, v = ir.ops.linear(x, self.qkv).view(-1, 3 * _HEADS, _SIZE).split([_HEADS] * 3, dim=1)
        output = torch.empty(x.shape[0], _HEADS, _SIZE)
        ir.ops.paged_attention(
            q, k, v, output, self.cache, step.table, step.lengths, step.starts, step.slots, 0.5
        )
        return ir.ops.linear(output.view(-1, _HIDDEN), self.out), residual


class Model(nn.Module):
    """Three layers, the last output blended with the residual by the toy's own op."""

    def __init__(self) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)
        self.embedding = nn.Parameter(torch.randn(16, _HIDDEN, generator=random))
        self.layers = nn.ModuleList(Layer(random) for _ in range(3))
        self.norm = nn.Parameter(torch.ones(_HIDDEN))

    def forward(self, ids: Tensor, step: Step) -> Tensor:
        x = nn.functional.embedding(ids, self.embedding)
        residual = torch.zeros_like(x)
        for layer in self.layers:
            x, residual = layer(x, residual, step)
        return ir.ops.rms_norm(toy_blend(x, residual, 0.25), self.norm, 1e-6)


def arguments(tokens: int) -> tuple[Tensor, Step]:
    counts = torch.tensor([0, tokens], dtype=torch.int32)
    table = torch.arange(4, dtype=torch.int32)[None]
    return torch.arange(tokens) % 16, Step(table, counts[1:], counts, torch.arange(tokens))


def outcome(backend: str) -> dict[str, Any]:
    model = Model()
    with torch.no_grad():
        compiled = ir_passes.compile(
            model,
            arguments(6),
            dynamic_dims=_DIMS,
            limits={"tokens": 16},
            config=CompilationConfig(backend=backend),
        )
        differences = [
            float((compiled(*arguments(tokens)) - model(*arguments(tokens))).abs().max())
            for tokens in (1, 2, 6, 13)
        ]
    report = compiled.report()
    (program,) = report.programs
    return {
        "backend": report.backend,
        "difference": max(differences),
        "selected": report.selected_impls,
        "pieces": [program.num_pieces, len(program.pieces)],
    }


def main() -> None:
    outcomes = {backend: outcome(backend) for backend in ("toy_functional", "toy_lowered")}
    functional: Any = find_backend("toy_functional")
    print(json.dumps({**outcomes, "seen": functional.seen}))


if __name__ == "__main__":
    main()
