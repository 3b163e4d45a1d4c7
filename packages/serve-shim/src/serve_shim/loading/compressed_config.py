"""Owns which modules of a compressed-tensors checkpoint are quantised, and how; reads no tensor.

Refuses every scheme that no form of a matrix computes. The configuration is that of
https://github.com/vllm-project/compressed-tensors, inside a model's config.json.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from serve_shim.errors import ModelLoadError
from serve_shim.models.fields import Fields

SECTION = "quantization_config"
METHOD = "compressed-tensors"
_SUPPORTED = (
    "W8A8 (int8 weights by channel, int8 activations by token, dynamic) as `int-quantized`, "
    "W4A16 and W8A16 (symmetric integers by group or channel) as `pack-quantized`"
)
_PACKED, _UNPACKED = "pack-quantized", ("int-quantized", "naive-quantized")
_BY_GROUP_INDEX = ("group", "dynamic", True)


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a module's weights are stored: integers of `bits`, each `group_size` with one scale.

    `group_size` is None for a scale by row. `is_packed` says that several integers lie in an
    int32, `has_int8_activations` that the module multiplies activations of 8 bits.
    """

    bits: int
    group_size: int | None
    is_packed: bool
    has_int8_activations: bool

    def __str__(self) -> str:
        stored = _PACKED if self.is_packed else _UNPACKED[0]
        return f"{stored} W{self.bits}A{8 if self.has_int8_activations else 16}"


@dataclass(frozen=True, slots=True)
class _Group:
    """Modules that share a scheme, or why theirs is refused; `where` is the group's place."""

    where: str
    targets: tuple[str, ...]
    scheme: Scheme | str


@dataclass(frozen=True, slots=True)
class Schemes:
    """The scheme of each module, by names of a Hugging Face checkpoint without `.weight`."""

    groups: tuple[_Group, ...]
    ignored: tuple[str, ...]

    def of(self, module: str) -> Scheme | None:
        """The scheme of `module`, None where it is not quantised.

        Of several groups that name it, the closest counts: its name, a pattern, then its class.
        Raises `ModelLoadError` for a scheme that is not supported.
        """
        if any(_closeness(module, target) for target in self.ignored):
            return None
        found = [
            (closeness, group)
            for group in self.groups
            if (closeness := max(_closeness(module, target) for target in group.targets))
        ]
        if not found:
            return None
        _, group = max(found, key=lambda each: each[0])
        if isinstance(group.scheme, str):
            raise ModelLoadError(
                f"{group.where}: module `{module}` has {group.scheme}, which is not supported; "
                f"supported: {_SUPPORTED}"
            )
        return group.scheme


def read_schemes(fields: Fields) -> Schemes | None:
    """The schemes in a parsed config.json, None where it names no quantisation.

    Raises `ModelLoadError` for another method, and for what changes the maths of every module.
    """
    if not fields.has(SECTION):
        return None
    section = fields.section(SECTION)
    method = section.text("quant_method")
    if method != METHOD:
        raise section.error("quant_method", f"supported is `{METHOD}`: {_SUPPORTED}")
    _refuse_extras(section)
    groups = section.section("config_groups")
    return Schemes(
        groups=tuple(_read_group(section, groups.section(name)) for name in groups.values),
        ignored=tuple(section.texts("ignore")) if section.has("ignore") else (),
    )


def without_quantization(fields: Fields) -> Fields:
    """The same configuration as that of a model which is not quantised."""
    return replace(fields, values={k: v for k, v in fields.values.items() if k != SECTION})


def _refuse_extras(section: Fields) -> None:
    if section.has("kv_cache_scheme"):
        raise section.error("kv_cache_scheme", "a quantised KV cache is not supported")
    if section.values.get("transform_config"):
        raise section.error("transform_config", "transformed activations are not supported")
    sparsity = section.values.get("sparsity_config")
    if not sparsity:
        return
    kind = section.section("sparsity_config").text("format", "dense")
    if kind != "dense":
        raise section.error(
            "sparsity_config", f"sparse weights are not supported; supported: dense, {_SUPPORTED}"
        )


def _read_group(section: Fields, group: Fields) -> _Group:
    targets = tuple(group.texts("targets"))
    if not targets:
        raise group.error("targets", "expected a name, a pattern or a class")
    stored = group.text("format", section.text("format", "dense"))
    weights = group.section("weights") if group.has("weights") else None
    inputs = group.section("input_activations") if group.has("input_activations") else None
    if weights is None:
        return _Group(group.where, targets, "no scheme for its weights")
    problems = [
        *_problems_of_weights(weights, stored),
        *(_problems_of_inputs(inputs, weights) if inputs else ()),
        *(["quantised outputs"] if group.has("output_activations") else ()),
    ]
    if problems:
        return _Group(group.where, targets, ", ".join(problems))
    scheme = Scheme(
        bits=weights.integer("num_bits", 8),
        group_size=weights.integer("group_size") if _strategy(weights) == "group" else None,
        is_packed=stored == _PACKED,
        has_int8_activations=inputs is not None,
    )
    return _Group(group.where, targets, scheme)


def _problems_of_weights(weights: Fields, stored: str) -> Sequence[str]:
    """What of the weights' scheme no form holds; empty if nothing."""
    bits, kind = weights.integer("num_bits", 8), weights.text("type", "int")
    problems: list[str] = []
    if kind != "int" or bits not in (4, 8):
        problems.append(f"weights of {bits} bits of type {kind}")
    elif stored != _PACKED and (bits != 8 or stored not in _UNPACKED):
        problems.append(f"weights of {bits} bits stored as {stored}")
    if not weights.boolean("symmetric", True):
        problems.append("asymmetric weights")
    if _strategy(weights) not in ("channel", "group"):
        problems.append(f"scales of weights by {_strategy(weights)}")
    if weights.values.get("actorder") in _BY_GROUP_INDEX:
        problems.append("columns in groups by an index (`actorder`)")
    return problems


def _problems_of_inputs(inputs: Fields, weights: Fields) -> Sequence[str]:
    bits, kind = inputs.integer("num_bits", 8), inputs.text("type", "int")
    problems: list[str] = []
    if kind != "int" or bits != 8:
        problems.append(f"activations of {bits} bits of type {kind}")
    if not inputs.boolean("symmetric", True):
        problems.append("asymmetric activations")
    if inputs.values.get("dynamic") is not True:
        problems.append("static scales of activations")
    elif _strategy(inputs) != "token":
        problems.append(f"scales of activations by {_strategy(inputs)}")
    if weights.integer("num_bits", 8) != 8 or _strategy(weights) != "channel":
        problems.append("quantised activations with weights that are not 8 bits by channel")
    return problems


def _strategy(args: Fields) -> str:
    """What shares a scale; a group size alone says so too, and -1 is a whole row."""
    if args.has("strategy"):
        return args.text("strategy")
    if not args.has("group_size"):
        return "tensor"
    return "channel" if args.integer("group_size", minimum=-1) == -1 else "group"


def _closeness(module: str, target: str) -> int:
    """3 for the name of `module`, 2 for a pattern that fits it, 1 for its class, 0 for others."""
    if target == module:
        return 3
    if target.startswith("re:"):
        return 2 if _fits(module, target) else 0
    return int(target == ("Embedding" if module.endswith("embed_tokens") else "Linear"))


def _fits(module: str, target: str) -> bool:
    try:
        return re.match(target.removeprefix("re:"), module) is not None
    except re.error as error:
        raise ModelLoadError(
            f"`{SECTION}`: target `{target[:200]}` is no regular expression: {error}"
        ) from error
