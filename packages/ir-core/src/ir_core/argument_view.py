"""What a predicate sees of a tensor: its static facts, never its token dims or its values.

A view reads plain attributes of the tensor, calls no torch function, and notes what was read, so
that a choice can be remembered by exactly those facts. It looks the same for one token and for a
thousand, in eager mode and for the symbolic tensors of a compiler.

A tensor that has a token dim shows nothing of its layout: a dim of size 1 may have any stride, so
that one row and two rows of the same buffer can differ in every stride and in contiguity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Never, TypeVar

import torch
from torch import Tensor

from ir_core.errors import PredicateError
from ir_core.inquiry import Inquiry

_View = TypeVar("_View")
Size = int | torch.SymInt
# What an error adds where a size or scalar changes from call to call and no declaration says so.
UNDECLARED = " (dynamic here, though `token_dims` does not name it)"
# Everything that Python may do to a tensor-like object behind a predicate's back.
_ARITHMETIC = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow")
_BITWISE = ("and", "or", "xor", "lshift", "rshift")
_UNARY = ("neg", "pos", "abs", "invert", "bool", "int", "float", "index", "complex")
_COMPARISON = ("eq", "ne", "lt", "le", "gt", "ge")
_CONTAINER = ("getitem", "setitem", "iter", "contains", "array", "format")


def _refuse_operators(cls: type[_View]) -> type[_View]:
    """Give a view class every operator, each of them an error that says so."""
    binary = (*_ARITHMETIC, *_BITWISE)
    reflected = tuple(f"r{name}" for name in binary)
    for name in (*binary, *reflected, *_UNARY, *_COMPARISON, *_CONTAINER):
        setattr(cls, f"__{name}__", _refused_operator(name))
    return cls


def _refused_operator(name: str) -> Callable[..., None]:
    def operator(self: Any, *_: object) -> None:
        self._refuse(f"computes with `{self._name}` ({name})")

    return operator


class ShapeView:
    """A tensor's sizes; reading a token dim, alone or among others, is an error."""

    __slots__ = ("_hidden", "_inquiry", "_name", "_sizes")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, inquiry: Inquiry, name: str, sizes: tuple[Size, ...], hidden: frozenset[int]
    ) -> None:
        self._inquiry = inquiry
        self._name = name
        self._sizes = sizes
        self._hidden = hidden

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, index: int | slice) -> Any:
        dims = range(len(self._sizes))[index]
        if isinstance(dims, int):
            return self._read(dims)
        return tuple(self._read(dim) for dim in dims)

    def __iter__(self) -> Iterator[int]:
        return iter(self[:])

    def __eq__(self, other: object) -> bool:
        return self[:] == (other[:] if isinstance(other, ShapeView) else other)

    def __contains__(self, size: object) -> bool:
        return size in self[:]

    def __repr__(self) -> str:
        return repr(self[:])

    def __format__(self, spec: str) -> str:
        return format(self[:], spec)

    def numel(self) -> int:
        """Product of all sizes; an error where one of them is a token dim."""
        product = 1
        for size in self:
            product *= size
        return product

    def _read(self, dim: int) -> int:
        what = f"`{self._name}.shape[{dim}]`"
        if dim in self._hidden:
            self._inquiry.hide(what)
        size = self._sizes[dim]
        if not isinstance(size, int):
            self._inquiry.hide(f"{what}{UNDECLARED}")
        return self._inquiry.note(self._name, "sizes", f"shape[{dim}]", size)


@_refuse_operators
class TensorView:
    """Static facts of one tensor argument.

    Readable: `dtype`, `device`, `layout`, `ndim`, `shape`, `size()`, `dim()`, `numel()`,
    `itemsize`, `element_size()`, `is_floating_point()`, `is_complex()`, `is_cpu`, `is_cuda`,
    `is_xpu`; and `stride()` and `is_contiguous()` of a tensor that has no token dim, such as a
    weight. The size of a token dim, a count that includes one, and the layout of a tensor that has
    one raise `BatchDependentPredicateError`; everything else a tensor has raises `PredicateError`.
    """

    __slots__ = ("_hidden", "_inquiry", "_name", "_tensor")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, inquiry: Inquiry, name: str, tensor: Tensor, hidden: frozenset[int]) -> None:
        self._inquiry = inquiry
        self._name = name
        self._tensor = tensor
        self._hidden = hidden

    @property
    def __class__(self) -> type:  # type: ignore[override]
        # `isinstance(weight, Tensor)` is a fair question.
        return Tensor

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""
        return self._note("dtype", self._tensor.dtype)

    @property
    def device(self) -> torch.device:
        """Where the tensor lies."""
        return self._note("device", self._tensor.device)

    @property
    def layout(self) -> torch.layout:
        """Strided, or one of the sparse layouts."""
        return self._note("layout", self._tensor.layout)

    @property
    def ndim(self) -> int:
        """Number of dims."""
        return self._note("ndim", self._tensor.ndim)

    @property
    def shape(self) -> ShapeView:
        """Sizes, token dims hidden."""
        self._inquiry.reads.add((self._name, "ndim"))
        return ShapeView(self._inquiry, self._name, tuple(self._tensor.shape), self._hidden)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.dtype.itemsize

    @property
    def is_cpu(self) -> bool:
        """Whether the tensor lies in host memory."""
        return self.device.type == "cpu"

    @property
    def is_cuda(self) -> bool:
        """Whether the tensor lies on a CUDA or ROCm device."""
        return self.device.type == "cuda"

    @property
    def is_xpu(self) -> bool:
        """Whether the tensor lies on an XPU."""
        return self.device.type == "xpu"

    def dim(self) -> int:
        """Number of dims."""
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        """One size, or all as `shape`."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """Number of elements; an error where a dim is a token dim."""
        return self.shape.numel()

    def element_size(self) -> int:
        """Bytes per element."""
        return self.itemsize

    def is_floating_point(self) -> bool:
        """Whether the dtype is a floating-point one."""
        return self.dtype.is_floating_point

    def is_complex(self) -> bool:
        """Whether the dtype is a complex one."""
        return self.dtype.is_complex

    def stride(self, dim: int | None = None) -> Any:
        """One stride or all, in elements; an error for a tensor that has a token dim."""
        spelling = f"stride({'' if dim is None else dim})"
        strides = self._static_strides(spelling)
        value = strides if dim is None else strides[dim]
        return self._inquiry.note(self._name, "strides", spelling, value)

    def is_contiguous(self) -> bool:
        """Whether the tensor is row-major and dense; an error for one that has a token dim."""
        self._static_strides("is_contiguous()")
        answer = self._tensor.is_contiguous()
        return self._inquiry.note(self._name, "strides", "is_contiguous()", answer)

    def __getattr__(self, name: str) -> Never:
        self._refuse(f"uses `{self._name}.{name}`")

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Never:
        view = next(each for each in _flatten((args, kwargs)) if type(each) is TensorView)
        view._refuse(f"calls `{getattr(func, '__name__', func)}` on `{view._name}`")

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        self._refuse(f"prints `{self._name}`")

    def _note(self, attribute: str, value: Any) -> Any:
        return self._inquiry.note(self._name, attribute, attribute, value)

    def _static_strides(self, spelling: str) -> tuple[int, ...]:
        if self._hidden:
            self._inquiry.hide(f"`{self._name}.{spelling}`")
        strides = self._tensor.stride()
        if not all(type(each) is int for each in (*self._tensor.shape, *strides)):
            self._inquiry.hide(f"`{self._name}.{spelling}`{UNDECLARED}")
        self._inquiry.reads |= {(self._name, "ndim"), (self._name, "sizes")}
        return strides

    def _refuse(self, what: str) -> Never:
        self._inquiry.refuse(
            PredicateError,
            f"{what}; a predicate sees only dtype, device, dims, sizes, strides and None-ness",
        )


@_refuse_operators
class ScalarView:
    """A scalar that changes with the tokens, declared or symbolic; any use of it is an error."""

    __slots__ = ("_inquiry", "_name", "_remark")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, inquiry: Inquiry, name: str, remark: str = "") -> None:
        self._inquiry = inquiry
        self._name = name
        self._remark = remark

    def __getattr__(self, name: str) -> Never:
        self._refuse(name)

    def __repr__(self) -> str:
        self._refuse("repr")

    def _refuse(self, _: str) -> Never:
        self._inquiry.hide(f"`{self._name}`{self._remark}")


def _flatten(value: Any) -> Iterator[Any]:
    if type(value) is dict:
        value = tuple(value.values())
    if type(value) in (tuple, list):
        for each in value:
            yield from _flatten(each)
    else:
        yield value
