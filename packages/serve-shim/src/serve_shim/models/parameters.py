"""Owns how a model's parameters are made: dtype, memory and the form of each matrix.

Refuses to know a family or a checkpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from serve_shim.models.matrix import (
    DenseMatrix,
    Matrix,
    MatrixUse,
    W4A16Matrix,
    W8A8Matrix,
    W8A16Matrix,
)
from serve_shim.models.weight_form import DENSE, WeightForm
from serve_shim.models.weight_memory import WeightMemory

MATRICES: Mapping[str, type[Matrix]] = {
    "dense": DenseMatrix,
    "w4a16": W4A16Matrix,
    "w8a16": W8A16Matrix,
    "w8a8": W8A8Matrix,
}
"""By a form's kind, the module that holds it."""


@dataclass(frozen=True, slots=True)
class ParameterMaker:
    """Makes parameters of the module at `path`: activations of `dtype`, weights in `memory`.

    `forms` holds the form of each matrix that is not dense, by its path in the model.
    """

    dtype: torch.dtype
    memory: WeightMemory = field(default_factory=WeightMemory)
    forms: Mapping[str, WeightForm] = field(default_factory=dict[str, WeightForm])
    path: str = ""

    def at(self, name: str) -> "ParameterMaker":
        """The maker for the submodule `name`."""
        return replace(self, path=f"{self.path}{name}.")

    def matrix(
        self,
        name: str,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        use: MatrixUse = MatrixUse.PRODUCT,
    ) -> Matrix:
        """The matrix `name`, in its form."""
        form = self.forms.get(f"{self.path}{name}", DENSE)
        return MATRICES[form.kind](
            in_features,
            out_features,
            form=form,
            dtype=self.dtype,
            memory=self.memory,
            bias=bias,
            use=use,
        )

    def vector(self, size: int) -> nn.Parameter:
        """A vector of the activations' dtype, such as a norm's weight."""
        return self.memory.parameter(size, dtype=self.dtype)
