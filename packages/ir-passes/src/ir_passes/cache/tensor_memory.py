"""Which tensors of a model are one object, and which share memory, told by numbers."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

Groups = tuple[tuple[int, ...], ...]
Memory = tuple[tuple[tuple[int, int], ...], ...]


def same_objects(objects: Mapping[int, object]) -> Groups:
    """The numbers of objects that occur more than once, a group for each object."""
    found: dict[int, list[int]] = {}
    for number, each in objects.items():
        found.setdefault(id(each), []).append(number)
    return tuple(sorted(tuple(sorted(group)) for group in found.values() if len(group) > 1))


def shared_memory(tensors: Mapping[int, Tensor]) -> Memory:
    """The numbers and offsets of tensors on one storage, a group for each storage of several."""
    found: dict[int, list[tuple[int, int]]] = {}
    for number, each in tensors.items():
        place = (number, int(each.storage_offset()))
        found.setdefault(each.untyped_storage()._cdata, []).append(place)
    return tuple(sorted(tuple(sorted(group)) for group in found.values() if len(group) > 1))
