"""The compile stack's configuration: names, types, defaults and their own consistency.

It refuses unknown keys and impossible values. It does not know where a value came from, which
options a given release honours, or torch: reading a configuration must stay cheap.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    JsonValue,
)


class ConfigModel(BaseModel):
    """Base of all configuration: immutable, closed to unknown keys, documented per field."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class NamedChoice(StrEnum):
    """A choice that is found by value or name, in either case, with `-` or `_`."""

    @classmethod
    def _missing_(cls, value: object) -> NamedChoice | None:
        if not isinstance(value, str):
            return None
        wanted = value.strip().lower().replace("-", "_")
        return next((m for m in cls if wanted in (m.value.lower(), m.name.lower())), None)


class CompilationMode(NamedChoice):
    """How the model is compiled; the numbers 0 to 3 are accepted in this order."""

    NONE = "none"
    STOCK_TORCH_COMPILE = "stock_torch_compile"
    DYNAMO_TRACE_ONCE = "dynamo_trace_once"
    VLLM_COMPILE = "vllm_compile"

    @classmethod
    def _missing_(cls, value: object) -> NamedChoice | None:
        if isinstance(value, bool):
            return None
        number = str(value).strip()
        if number in ("0", "1", "2", "3"):
            return tuple(cls)[int(number)]
        return super()._missing_(value)


class CudagraphMode(NamedChoice):
    """Which parts of a step are captured and replayed as a graph."""

    NONE = "NONE"
    PIECEWISE = "PIECEWISE"
    FULL = "FULL"
    FULL_DECODE_ONLY = "FULL_DECODE_ONLY"
    FULL_AND_PIECEWISE = "FULL_AND_PIECEWISE"


class DynamicShapesType(NamedChoice):
    """How the token count is represented while the model is traced."""

    BACKED = "backed"
    UNBACKED = "unbacked"
    BACKED_SIZE_OBLIVIOUS = "backed_size_oblivious"


class GuardPolicy(NamedChoice):
    """What a dropped guard that a served size violates leads to."""

    FAIL = "fail"
    REBUILD = "rebuild"
    WARN = "warn"


class CacheMode(NamedChoice):
    """How the compile cache is used; `require` makes a miss an error."""

    OFF = "off"
    RO = "ro"
    RW = "rw"
    REQUIRE = "require"


class CacheTrust(NamedChoice):
    """Whose entries of the compile cache are used."""

    VERIFIED = "verified"
    DIRECTORY = "directory"


class CacheSaveFormat(NamedChoice):
    """The form of a compiled artifact on disk; `unpacked` can be read by a person."""

    BINARY = "binary"
    UNPACKED = "unpacked"


class AutotuneMode(NamedChoice):
    """Whether implementations are timed at start-up, or a cached result is used."""

    OFF = "off"
    CACHED = "cached"
    ON = "on"


def to_switch(value: object) -> object:
    """YAML reads a bare `on` or `off` as a boolean; give the word back."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def refuse_bool(value: object) -> object:
    """Refuse `true` where a number is wanted: Python would take it for 1."""
    if isinstance(value, bool):
        raise ValueError("wants a number, not true or false")
    return value


def refuse_empty(value: object) -> object:
    """Refuse an empty path: Python would take it for the current directory."""
    if value == "":
        raise ValueError("wants a path, not an empty text")
    return value


def to_distinct_ascending(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Sort sizes, refusing duplicates."""
    if len(set(sizes)) != len(sizes):
        raise ValueError("names a size twice")
    return tuple(sorted(sizes))


PositiveNumber = Annotated[int, BeforeValidator(refuse_bool), Field(ge=1)]
Number = Annotated[int, BeforeValidator(refuse_bool), Field(ge=0)]
FilePath = Annotated[Path, BeforeValidator(refuse_empty)]
Sizes = Annotated[tuple[PositiveNumber, ...], AfterValidator(to_distinct_ascending)]


class DynamicShapesConfig(ConfigModel):
    """How dynamic token counts are traced, and what is done about guards."""

    type: DynamicShapesType = DynamicShapesType.UNBACKED
    """Representation of the token count: backed, unbacked or backed_size_oblivious."""
    evaluate_guards: bool = False
    """Make a dropped guard an error that cannot be evaluated for every served size beforehand."""
    guards: GuardPolicy = GuardPolicy.REBUILD
    """What a size that breaks a guard leads to: rebuild (its own program), fail or warn."""


class PassConfig(ConfigModel):
    """Which graph passes are wanted; None leaves the decision to the optimization level."""

    fuse_norm_quant: bool | None = None
    """Fuse a norm with the quantisation that follows it; on unless it is false."""
    fuse_act_quant: bool | None = None
    """Fuse an activation with the quantisation that follows it; on unless it is false."""
    fuse_allreduce_rms: bool | None = None
    """Fuse all_reduce, residual add and norm; on unless it is false."""
    enable_qk_norm_rope_fusion: bool | None = None
    """Fuse the norms of query and key heads with their rotation; on unless it is false."""
    fuse_rope_kvcache: bool | None = None
    """Fuse the rotation of heads with attention and its cache write; on unless it is false."""
    enable_sp: bool | None = None
    """Sequence parallelism: shard norms and residuals over the ranks."""
    sp_min_token_num: PositiveNumber | None = None
    """Fewest tokens for which sequence parallelism is used."""
    fuse_gemm_comms: bool | None = None
    """Overlap matrix products with the collectives next to them."""
    enable: tuple[str, ...] = ()
    """Passes to run, by name: such a pass warns where it finds nothing to change."""
    disable: tuple[str, ...] = ()
    """Passes to leave out, by name."""
    order: tuple[str, ...] = ()
    """Passes that run in this order, in the places that they have among the others."""
    limit: Number | None = None
    """Run only the first so many passes, to find the one that breaks."""
    verify_each: bool = False
    """Check the whole graph after each pass, and that running it again changes nothing."""


class CompilationConfig(ConfigModel):
    """Everything that decides how the model is split, compiled, captured and cached.

    None means that the optimization level decides. Sizes and endpoints are token counts.
    """

    mode: CompilationMode | None = None
    """none, stock_torch_compile, dynamo_trace_once or vllm_compile; or 0 to 3."""
    backend: Annotated[str, Field(min_length=1)] = "inductor"
    """Compiler of each piece: inductor, eager, aot_eager or one from a plug-in."""
    splitting_ops: tuple[str, ...] | None = None
    """Ops at which the graph is split; by default those that ops declare."""
    compile_sizes: Sizes = ()
    """Token counts that get a static program of their own."""
    compile_ranges_endpoints: Sizes = ()
    """Ends of the ranges of token counts that share a program."""
    cudagraph_mode: CudagraphMode | None = None
    """NONE, PIECEWISE, FULL, FULL_DECODE_ONLY or FULL_AND_PIECEWISE."""
    cudagraph_capture_sizes: Sizes | None = None
    """Token counts to capture."""
    max_cudagraph_capture_size: PositiveNumber | None = None
    """Largest token count to capture where the sizes are chosen automatically."""
    max_tape_tokens: Number | None = None
    """Largest step that a CPU runs from a tape, 0 for none; by default max_num_seqs, at most 64."""
    dynamic_shapes_config: DynamicShapesConfig = DynamicShapesConfig()
    """Dynamic token counts and guards."""
    pass_config: PassConfig = PassConfig()
    """Graph passes."""
    inductor_compile_config: Mapping[str, JsonValue] = {}
    """Options handed to Inductor, by their names there."""
    autotune: Annotated[AutotuneMode, BeforeValidator(to_switch)] = AutotuneMode.OFF
    """Let timing choose implementations before ready: off, cached (timed before) or on."""
    cache_mode: Annotated[CacheMode | None, BeforeValidator(to_switch)] = None
    """Use of the compile cache: off, ro, rw or require; rw unless IR_DISABLE_COMPILE_CACHE is 1."""
    cache_dir: FilePath | None = None
    """Directory of the compile cache."""
    cache_key_file: FilePath | None = None
    """Key that nodes share to trust each other's cache entries."""
    cache_trust: CacheTrust = CacheTrust.VERIFIED
    """Entries to use: verified (those that the key vouches for) or directory (all of them)."""
    cache_max_size: Annotated[ByteSize, BeforeValidator(refuse_bool), Field(gt=0)] = ByteSize(
        4 << 30
    )
    """Size that the compile cache is kept below, such as 4GiB; what was used least goes first."""
    compile_cache_save_format: CacheSaveFormat = CacheSaveFormat.BINARY
    """Artifacts on disk: binary or unpacked."""
    debug_dump_path: FilePath | None = None
    """Directory for graphs before and after each pass."""
