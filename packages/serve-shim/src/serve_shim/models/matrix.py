"""Owns a matrix of weights in each form that it can have; refuses to choose a form or to read one.

Every product and every look-up of the model goes through the IR ops of the matrix's form.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Flag, auto
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import ir_core as ir
from serve_shim.models.weight_form import WeightForm
from serve_shim.models.weight_memory import WeightMemory


class MatrixUse(Flag):
    """What a matrix is for: to multiply activations, to look rows up, or both."""

    PRODUCT = auto()
    LOOKUP = auto()


class Row(NamedTuple):
    """One row of a stored tensor; of a vector, which has no `columns`, one element."""

    columns: int | None
    dtype: torch.dtype


class Matrix(nn.Module, ABC):
    """Weights [out_features, in_features] and an optional bias; uninitialised until loaded.

    `dtype` is the activations'. `layout` says how the weights lie: `plain`, until `pack`.
    """

    product: ir.IrOp
    lookup: ir.IrOp
    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        form: WeightForm,
        dtype: torch.dtype,
        memory: WeightMemory,
        bias: bool = False,
        use: MatrixUse = MatrixUse.PRODUCT,
    ) -> None:
        super().__init__()
        if MatrixUse.LOOKUP in use and not form.has_lookup:
            raise ValueError(
                f"no op looks up rows of {form} weights; hold the table in another form"
            )
        self.in_features, self.form, self.dtype, self.use = in_features, form, dtype, use
        self.layout = "plain"
        for name, row in self._rows().items():
            self.register_parameter(name, row and _uninitialised(out_features, row, memory))
        added = memory.parameter(out_features, dtype=dtype) if bias else None
        self.register_parameter("bias", added)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]: `x @ weight.T + bias` in x's dtype."""
        return self.product(*self._product_values(x))

    def embed(self, input_ids: Tensor) -> Tensor:
        """Return the rows [T, in_features] of int64 `input_ids` [T], in `dtype`."""
        return self.lookup(*self._lookup_values(input_ids))

    def stored_rows(self, start: int, stop: int, columns: int | None = None) -> list[Tensor]:
        """Views of rows `start` to `stop` of each stored tensor, to be filled before `pack`.

        `columns` are the first of them, whole groups; None for all. A vector has none.
        """
        rows = [each[start:stop] for _, each in self._stored()]
        if columns is None:
            return rows
        return [
            each if each.dim() == 1 else each[:, : each.shape[1] * columns // self.in_features]
            for each in rows
        ]

    def pack(self) -> ir.LayoutChoice:
        """Reorder complete weights for the implementation that will run; memory is reused.

        Where both uses share the matrix, the product decides: it reads every row.
        """
        op, values = self._deciding_call()
        choice = op.choose_layout(*values)
        if MatrixUse.LOOKUP in self.use and choice.layout not in self.lookup.layouts:
            choice = ir.LayoutChoice("plain", op.select(*values))
        packed = dict(zip(op.schema.names, op.pack(values, choice.layout), strict=True))
        for name, before in self._stored():
            if packed[name] is not before:
                self.register_parameter(name, nn.Parameter(packed[name], requires_grad=False))
        self.layout = choice.layout
        return choice

    def _deciding_call(self) -> tuple[ir.IrOp, tuple[Any, ...]]:
        """The op whose implementation chooses the layout, and a call's values, one row of x."""
        device = self.weight.device
        if MatrixUse.PRODUCT in self.use:
            x = torch.empty(1, self.in_features, dtype=self.dtype, device=device)
            return self.product, self._product_values(x)
        input_ids = torch.empty(1, dtype=torch.int64, device=device)
        return self.lookup, self._lookup_values(input_ids)

    def _stored(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, self.get_parameter(name)) for name, row in self._rows().items() if row]

    @abstractmethod
    def _rows(self) -> Mapping[str, Row | None]:
        """A row of each tensor that is stored, by its name; None for one that this form lacks."""

    # These run for every matrix in every step, and take what is held from `_parameters`: reading
    # an attribute that is a parameter costs ten times as much, half a microsecond.
    @abstractmethod
    def _product_values(self, x: Tensor) -> tuple[Any, ...]:
        """One value for each parameter of `product`."""

    def _lookup_values(self, input_ids: Tensor) -> tuple[Any, ...]:
        """One value for each parameter of `lookup`, in the forms that have it."""
        raise NotImplementedError(f"no op looks up rows of {self.form} weights")


class DenseMatrix(Matrix):
    """A weight is an element of the activations' dtype."""

    product, lookup = ir.ops.linear, ir.ops.embedding

    def _rows(self) -> Mapping[str, Row | None]:
        return {"weight": Row(self.in_features, self.dtype)}

    def _product_values(self, x: Tensor) -> tuple[Any, ...]:
        held = self._parameters
        return x, held["weight"], held["bias"], self.layout

    def _lookup_values(self, input_ids: Tensor) -> tuple[Any, ...]:
        return input_ids, self.weight, self.layout


class W8A16Matrix(Matrix):
    """A weight is a signed byte times its group's scale."""

    product, lookup = ir.ops.linear_w8a16, ir.ops.embedding_w8a16
    scale: Tensor

    def _rows(self) -> Mapping[str, Row | None]:
        num_groups = self.in_features // self.form.group_size
        weight = Row(self.in_features, torch.int8)
        return {"weight": weight, "scale": Row(num_groups, torch.float16)}

    def _product_values(self, x: Tensor) -> tuple[Any, ...]:
        held, group_size = self._parameters, self.form.group_size
        return x, held["weight"], held["scale"], held["bias"], group_size, self.layout

    def _lookup_values(self, input_ids: Tensor) -> tuple[Any, ...]:
        group_size = self.form.group_size
        return input_ids, self.weight, self.scale, self.dtype, group_size, self.layout


class W4A16Matrix(Matrix):
    """A weight is four bits times its group's scale, two in a byte; no op looks its rows up."""

    product = ir.ops.linear_w4a16
    scale: Tensor
    minimum: Tensor | None

    def _rows(self) -> Mapping[str, Row | None]:
        groups = Row(self.in_features // self.form.group_size, torch.float16)
        minimum = groups if self.form.has_minimum else None
        return {
            "weight": Row(self.in_features // 2, torch.uint8),
            "scale": groups,
            "minimum": minimum,
        }

    def _product_values(self, x: Tensor) -> tuple[Any, ...]:
        held, group_size = self._parameters, self.form.group_size
        scale, minimum = held["scale"], held["minimum"]
        return x, held["weight"], scale, minimum, held["bias"], group_size, self.layout


class W8A8Matrix(Matrix):
    """A weight is a signed byte times its row's scale; no op looks its rows up.

    Activations become bytes, each row of them by a scale of its own, once for all rows of weights.
    """

    product = ir.ops.linear_w8a8
    weight_scale: Tensor

    def _rows(self) -> Mapping[str, Row | None]:
        weight = Row(self.in_features, torch.int8)
        return {"weight": weight, "weight_scale": Row(None, torch.float32)}

    def _product_values(self, x: Tensor) -> tuple[Any, ...]:
        held = self._parameters
        integers, x_scale = ir.ops.quantize_int8_per_token(x)
        weight, weight_scale = held["weight"], held["weight_scale"]
        return integers, x_scale, weight, weight_scale, x.dtype, held["bias"], self.layout


def _uninitialised(num_rows: int, row: Row, memory: WeightMemory) -> nn.Parameter:
    shape = (num_rows,) if row.columns is None else (num_rows, row.columns)
    return memory.parameter(*shape, dtype=row.dtype)
