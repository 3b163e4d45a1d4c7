"""Checks in eager mode that nothing uses a tensor after `maybe_inplace` took it.

While a check is on, `maybe_inplace` runs functionally, so a donated region of a storage is dead:
whatever reads or writes it later, directly, through a view or through an alias, is an error.
Regions are exact: columns of one buffer that do not overlap are independent. `tolist()`, `numpy()`
and `data_ptr()` reach no dispatch mode, so such a use is not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from ir_core.errors import DonationError
from ir_core.location import line_of_caller

# These read an argument's metadata only.
_METADATA_ONLY = frozenset(
    (
        *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"),
        *("new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full"),
    )
)
# These fill their first argument whatever it held, so a region is alive again.
_OVERWRITES = frozenset({"copy_", "fill_", "zero_"})
# Above this span an exact comparison would cost more memory than a check is worth.
_MAX_EXACT_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Region:
    """The bytes of a storage that a tensor covers."""

    offset: int
    itemsize: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Region:
        """Region of a strided tensor in its storage."""
        return cls(
            int(tensor.storage_offset()) * tensor.element_size(),
            tensor.element_size(),
            tuple(tensor.shape),
            tuple(stride * tensor.element_size() for stride in tensor.stride()),
        )

    @property
    def is_empty(self) -> bool:
        """Whether the region holds no byte."""
        return 0 in self.sizes

    @property
    def end(self) -> int:
        """First byte after the region."""
        last = sum((s - 1) * stride for s, stride in zip(self.sizes, self.strides, strict=True))
        return self.offset + last + self.itemsize

    def overlaps(self, other: Region) -> bool:
        """Whether the regions share a byte; exact unless they span more than 256 MiB."""
        if self.is_empty or other.is_empty:
            return False
        start, end = max(self.offset, other.offset), min(self.end, other.end)
        if start >= end:
            return False
        low, high = min(self.offset, other.offset), max(self.end, other.end)
        if high - low > _MAX_EXACT_BYTES:
            return True
        return bool((self._mask(low, high) & other._mask(low, high)).any())

    def covers(self, other: Region) -> bool:
        """Whether every byte of the other region is in this one; False where that is costly."""
        low, high = min(self.offset, other.offset), max(self.end, other.end)
        if self.is_empty or high - low > _MAX_EXACT_BYTES:
            return False
        return not bool((other._mask(low, high) & ~self._mask(low, high)).any())

    def _mask(self, low: int, high: int) -> Tensor:
        mask = torch.zeros(high - low, dtype=torch.bool)
        sizes, strides = (*self.sizes, self.itemsize), (*self.strides, 1)
        mask.as_strided(sizes, strides, self.offset - low).fill_(True)
        return mask


@dataclass(frozen=True, slots=True)
class Argument:
    """One tensor among the arguments of a call."""

    name: str
    tensor: Tensor
    is_donated: bool

    def overlaps(self, other: Argument) -> bool:
        """Whether two arguments share a byte; False where one is not strided."""
        if any(each.tensor.layout is not torch.strided for each in (self, other)):
            return False
        mine, theirs = self.tensor.untyped_storage(), other.tensor.untyped_storage()
        same = mine._cdata == theirs._cdata
        return same and Region.of(self.tensor).overlaps(Region.of(other.tensor))


@dataclass(frozen=True, slots=True)
class Donation:
    """A donated region: which op took it as which argument, on which line."""

    storage: StorageWeakRef
    region: Region
    op: str
    argument: str
    line: str


class DonationCheck(TorchDispatchMode):
    """A context in which use after donation raises DonationError. It holds for its thread only."""

    def __init__(self) -> None:
        super().__init__()
        self._donations: dict[int, list[Donation]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _is_harmless(func):
            self._check(func, args, kwargs)
        arguments = list(_arguments(func, args, kwargs))
        _refuse_overlap(func, arguments)
        result = func(*args, **kwargs)
        for argument in arguments:
            if argument.is_donated:
                self._donate(func, argument.name, argument.tensor)
        return result

    def _check(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        tensors = list(_tensors((args, tuple(kwargs.values()))))
        if func._overloadpacket.__name__ in _OVERWRITES:
            self._revive(tensors.pop(0))
        for tensor in tensors:
            donation = self._find(tensor)
            if donation is not None:
                raise DonationError(
                    f"`{func}` at {line_of_caller()} uses a tensor of shape {tuple(tensor.shape)} "
                    f"whose memory `{donation.op}` took as `{donation.argument}` at "
                    f"{donation.line}. Use the result instead, call the op without "
                    "`maybe_inplace`, or clone first."
                )

    def _find(self, tensor: Tensor) -> Donation | None:
        region = Region.of(tensor)
        for donation in self._of_storage(tensor):
            if donation.region.overlaps(region):
                return donation
        return None

    def _revive(self, tensor: Tensor) -> None:
        alive = self._of_storage(tensor)
        if alive:
            region = Region.of(tensor)
            alive[:] = [each for each in alive if not region.covers(each.region)]

    def _donate(self, func: Any, argument: str, tensor: Tensor) -> None:
        self._donations = {key: each for key, each in self._donations.items() if _is_alive(each)}
        storage = StorageWeakRef(tensor.untyped_storage())
        op = func.name().partition(".")[0]
        donation = Donation(storage, Region.of(tensor), op, argument, line_of_caller())
        self._donations.setdefault(storage.cdata, []).append(donation)

    def _of_storage(self, tensor: Tensor) -> list[Donation]:
        if not self._donations or tensor.layout is not torch.strided:
            return []
        return self._donations.get(tensor.untyped_storage()._cdata, [])


def _is_alive(donations: list[Donation]) -> bool:
    return bool(donations) and not donations[0].storage.expired()


def _is_harmless(func: Any) -> bool:
    return func.is_view or func._overloadpacket.__name__ in _METADATA_ONLY


def _arguments(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Argument]:
    """The tensors that a call of `maybe_inplace` passes; none for any other function."""
    if func._overloadname != "maybe_inplace":
        return
    for index, argument in enumerate(func._schema.arguments):
        is_donated = argument.alias_info is not None and argument.alias_info.is_write
        value = args[index] if index < len(args) else kwargs.get(argument.name)
        for tensor in _tensors((value,)):
            yield Argument(argument.name, tensor, is_donated)


def _refuse_overlap(func: Any, arguments: Iterable[Argument]) -> None:
    for first, second in combinations(arguments, 2):
        if (first.is_donated or second.is_donated) and first.overlaps(second):
            raise DonationError(
                f"`{func}` at {line_of_caller()} takes the same memory as `{first.name}` and "
                f"as `{second.name}`; give it two tensors, or clone one."
            )


def _tensors(value: Iterable[Any]) -> Iterator[Tensor]:
    for each in value:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, list | tuple):
            yield from _tensors(each)
