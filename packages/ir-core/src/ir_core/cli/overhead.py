"""What a call through the IR costs over calling the implementation, with and without torch."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ir_core.cli.stopwatch import median_microseconds
from ir_core.testing import fresh_registry


@dataclass(frozen=True, slots=True)
class Overhead:
    """Microseconds: a bare implementation, and what each way to call it adds.

    `num_predicates` is how many predicates stand before the choice in `predicates`.
    """

    bare: float
    eager: float
    torch_dispatcher: float
    predicates: float
    num_predicates: int

    def to_text(self) -> str:
        """One line per way to call."""
        return "\n".join(
            (
                f"bare implementation             {self.bare:6.2f} us",
                f"+ IR call, eager                {self.eager:6.2f} us",
                f"+ the same, {self.num_predicates} predicates before  {self.predicates:6.2f} us",
                f"+ through the torch dispatcher  {self.torch_dispatcher:6.2f} us",
            )
        )


def measure_overhead(seconds: float, num_predicates: int = 5) -> Overhead:
    """Time an op with rms_norm's parameters whose implementation allocates and does nothing."""
    registry = fresh_registry()

    @registry.register_op
    def probe(
        x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> Tensor:
        return torch.empty_like(x)

    def refuses(x, weight, epsilon, variance_size=None):  # type: ignore[no-untyped-def]
        return x.dtype == torch.float64 and weight is not None

    providers = [f"refusing_{at}" for at in range(num_predicates)]
    for provider in providers:
        probe.register_impl(provider, supports_args=refuses)(probe.native.fn)
    x, weight = torch.randn(1, 576), torch.randn(576)
    with torch.inference_mode(), registry.priorities.override({"probe": ["native"]}):
        native = probe.native.fn
        short = median_microseconds(
            {
                "bare": lambda: native(x, weight, 1e-5),
                "eager": lambda: probe(x, weight, 1e-5),
                "torch": lambda: probe.torch_op(x, weight, 1e-5),
            },
            seconds / 2,
        )
    with torch.inference_mode(), registry.priorities.override({"probe": [*providers, "native"]}):
        long = median_microseconds({"eager": lambda: probe(x, weight, 1e-5)}, seconds / 2)
    return Overhead(
        bare=short["bare"],
        eager=short["eager"] - short["bare"],
        torch_dispatcher=short["torch"] - short["bare"],
        predicates=long["eager"] - short["bare"],
        num_predicates=num_predicates,
    )
