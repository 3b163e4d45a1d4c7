"""All settings of a server: names, types, ranges and defaults. Where values come from is not here.

A field's docstring is its help text. Unknown keys and values out of range are refused by pydantic.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    Field,
    SecretStr,
    StringConstraints,
    model_validator,
)

from ir_passes.config import (
    CompilationConfig,
    ConfigModel,
    FilePath,
    NamedChoice,
    Number,
    PositiveNumber,
    refuse_bool,
)
from serve_shim.settings.flag import Flag, InnerFlags, OpNames


class Dtype(NamedChoice):
    """Element type of weights and activations; `auto` takes the checkpoint's."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Quantization(NamedChoice):
    """Whether weights stay in the integers that the checkpoint stores."""

    AUTO = "auto"
    NONE = "none"


class LogLevel(NamedChoice):
    """Threshold of what is logged."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"
    CRITICAL = "CRITICAL"


def to_providers(providers: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse an empty priority and one that names a provider twice."""
    if not providers:
        raise ValueError("names no provider; name at least one or leave the op out")
    repeated = sorted({p for p in providers if providers.count(p) > 1})
    if repeated:
        raise ValueError(f"names provider `{repeated[0]}` twice")
    return providers


def require_positive(size: ByteSize) -> ByteSize:
    """Refuse a size of no bytes."""
    if size < 1:
        raise ValueError("must be at least one byte")
    return size


def to_root_path(path: str) -> str:
    """Refuse a path that no request's path can begin with."""
    if not re.fullmatch(r"(/[!-~]*[!-.0-~])?", path):
        raise ValueError("must begin with `/`, not end with `/`, and be ASCII without blanks")
    return path


def strip_text(value: object) -> object:
    """Text without the blanks around it; other values as they are."""
    return value.strip() if isinstance(value, str) else value


Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Text = Annotated[str, StringConstraints(min_length=1)]
Seed = Annotated[int, BeforeValidator(refuse_bool), Field(ge=-(2**63), le=2**63 - 1)]
Seconds = Annotated[float, BeforeValidator(refuse_bool), Field(ge=0, allow_inf_nan=False)]
Bytes = Annotated[ByteSize, BeforeValidator(refuse_bool), AfterValidator(require_positive)]
Secret = Annotated[SecretStr, BeforeValidator(strip_text), Field(min_length=1)]
Providers = Annotated[tuple[Name, ...], AfterValidator(to_providers)]

_OF_SEVERAL_RANKS = {
    "ray_address",
    "allow_insecure_ray",
    "heartbeat_timeout",
    "check_rank_tokens",
}

_COMPILATION_FLAGS = InnerFlags(
    {
        "autotune": Flag("Compilation"),
        "cache_mode": Flag("Compilation"),
        "cache_dir": Flag("Compilation"),
        "cache_key_file": Flag("Compilation"),
        "cache_trust": Flag("Compilation"),
        "cache_max_size": Flag("Compilation"),
        "pass_config.disable": Flag("Compilation", name="disable_pass", is_repeatable=True),
        "pass_config.limit": Flag("Compilation", name="pass_limit"),
        "pass_config.verify_each": Flag("Compilation", name="verify_each_pass"),
    }
)


class SchedulerConfig(ConfigModel):
    """How many requests run and wait, and how a step is filled."""

    max_num_seqs: Annotated[PositiveNumber, Flag("Scheduler")] = 64
    """Sequences that run at once."""
    max_num_batched_tokens: Annotated[PositiveNumber, Flag("Scheduler")] = 512
    """Tokens in one step, prefill and decode together."""
    max_queue: Annotated[Number, Flag("Scheduler")] = 256
    """Sequences that may wait; more are answered with 503."""
    enable_prefix_caching: Annotated[bool, Flag("Scheduler")] = True
    """Reuse the KV cache of equal prompt beginnings."""
    enable_chunked_prefill: Annotated[bool, Flag("Scheduler")] = True
    """Spread a long prompt over several steps."""

    @model_validator(mode="after")
    def _check_budget(self) -> Self:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"has `max_num_batched_tokens` ({self.max_num_batched_tokens}) below"
                f" `max_num_seqs` ({self.max_num_seqs}): every running sequence needs a token per"
                " step, so raise the first or lower the second"
            )
        return self


class CacheConfig(ConfigModel):
    """Size and shape of the paged KV cache."""

    block_size: Annotated[PositiveNumber, Flag("KV cache")] = 16
    """Tokens in a block."""
    num_blocks: Annotated[PositiveNumber | None, Flag("KV cache")] = None
    """Blocks in all, instead of the memory below."""
    kv_cache_memory_bytes: Annotated[Bytes | None, Flag("KV cache")] = None
    """Memory for the cache, such as 1GiB; by default chosen from what is free."""

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        if self.num_blocks is not None and self.kv_cache_memory_bytes is not None:
            raise ValueError(
                "has both `num_blocks` and `kv_cache_memory_bytes`, which both fix its size;"
                " give one of them"
            )
        return self


class LimitsConfig(ConfigModel):
    """What one request may ask for; more is an error of that request."""

    max_body_bytes: Bytes = ByteSize(8 << 20)
    """Size of a request's body."""
    max_header_bytes: Bytes = ByteSize(64 << 10)
    """Size of a request's headers."""
    max_n: PositiveNumber = 64
    """Completions per prompt."""
    max_prompts: PositiveNumber = 256
    """Prompts in a request."""
    max_sequences: PositiveNumber = 256
    """Prompts times completions in a request."""
    max_logprobs: Number = 20
    """Log probabilities per token."""
    max_stop: Number = 4
    """Stop strings."""
    max_logit_bias: Number = 300
    """Entries of logit_bias."""


class KernelConfig(ConfigModel):
    """Which implementation each op runs."""

    ir_op_priority: Annotated[Mapping[str, Providers], OpNames(), Flag("Kernels")] = {}
    """Providers to try first, for any op: --ir-op-priority.rms_norm=aiter,vllm_c."""


class Settings(ConfigModel):
    """One server's settings. Defaults alone serve the embedded model on loopback."""

    model: Annotated[Name | None, Flag("Model")] = None
    """Directory, GGUF file or hub name, also as MODEL; the embedded model by default."""
    tokenizer: Annotated[Name | None, Flag("Model")] = None
    """Directory or GGUF file of the tokenizer; the model's own by default."""
    revision: Annotated[Name | None, Flag("Model")] = None
    """Commit, tag or branch of a model on the hub."""
    served_model_name: Annotated[tuple[Name, ...], Flag("Model")] = ()
    """Names that requests may use for the model; the first is reported."""
    dtype: Annotated[Dtype, Flag("Model")] = Dtype.AUTO
    """auto (the checkpoint's), float32, bfloat16 or float16."""
    quantization: Annotated[Quantization, Flag("Model")] = Quantization.AUTO
    """auto keeps 4-bit and 8-bit weights with a 16-bit dtype; none expands them."""
    max_model_len: Annotated[PositiveNumber | None, Flag("Model")] = None
    """Tokens of prompt and completion together; the model's limit by default."""
    seed: Annotated[Seed, Flag("Model")] = 0
    """Seed of sampling for requests that bring none."""
    chat_template: Annotated[Text | None, Flag("Model")] = None
    """Jinja template, or a file that holds one, instead of the tokenizer's."""
    allow_pickle_weights: Annotated[bool, Flag("Model")] = False
    """Read checkpoints that are pickles."""

    host: Annotated[Name, Flag("Server")] = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, BeforeValidator(refuse_bool), Field(ge=0, le=65535), Flag("Server")] = 8000
    """Port to listen on; 0 takes a free one."""
    uds: Annotated[FilePath | None, Flag("Server")] = None
    """Unix socket to listen on instead of host and port."""
    root_path: Annotated[str, AfterValidator(to_root_path), Flag("Server")] = ""
    """Path under which a proxy publishes the server, such as /api."""
    api_key: Annotated[tuple[Secret, ...], Flag("Server")] = ()
    """Key that requests must carry; several as a JSON list. Prefer the variable or the file."""
    api_key_file: Annotated[FilePath | None, Flag("Server")] = None
    """File of keys, one a line."""
    cors_origins: Annotated[tuple[Name, ...], Flag("Server")] = ()
    """Origins that browsers may call from."""
    disable_docs: Annotated[bool, Flag("Server")] = False
    """Leave out /docs and /openapi.json."""
    metrics_prefix: Annotated[
        str, StringConstraints(pattern=r"^([a-zA-Z_:][a-zA-Z0-9_:]*)?$"), Flag("Server")
    ] = "vllm:"
    """Beginning of every metric's name."""
    metrics_public: Annotated[bool, Flag("Server")] = True
    """Answer /metrics without a key, as scrapers have none; --no-metrics-public asks for one."""
    shutdown_timeout: Annotated[Seconds, Flag("Server")] = 30.0
    """Seconds that requests in flight get after SIGTERM."""
    drain_grace: Annotated[Seconds, Flag("Server")] = 0.0
    """Seconds to go on listening after SIGTERM, so that a balancer notices."""
    watchdog_timeout: Annotated[Seconds, Field(gt=0), Flag("Server")] = 300.0
    """Seconds that one step may take before the engine counts as stuck and the server ends."""

    log_level: Annotated[LogLevel, Flag("Logging")] = LogLevel.INFO
    """DEBUG, INFO, WARNING, ERROR or CRITICAL."""
    log_format: Annotated[Literal["text", "json"], Flag("Logging")] = "text"
    """text, or json for one object a line."""

    scheduler: SchedulerConfig = SchedulerConfig()
    """Scheduler."""
    cache: CacheConfig = CacheConfig()
    """KV cache."""
    limits: Annotated[LimitsConfig, Flag("Server")] = LimitsConfig()
    """What one request may ask for, as JSON or --limits.max-n=8; see --help=limits."""

    kernel_config: Annotated[KernelConfig, Flag("Kernels")] = KernelConfig()
    """Kernel selection as JSON."""
    batch_invariant: Annotated[bool, Flag("Kernels")] = False
    """Run only implementations whose results do not depend on the batch."""
    threads: Annotated[PositiveNumber | None, Flag("Kernels")] = None
    """CPU threads of each rank; OMP_NUM_THREADS, else its share of the cores."""

    optimization_level: Annotated[
        int,
        BeforeValidator(refuse_bool),
        Field(ge=0, le=3),
        Flag("Compilation", ("-O",)),
    ] = 2
    """0 is eager, from 1 on the model is compiled; -O0 to -O3 are short for it."""
    enforce_eager: Annotated[bool, Flag("Compilation")] = False
    """Run eagerly whatever the optimization level."""
    compilation_config: Annotated[
        CompilationConfig, Flag("Compilation", ("-cc",)), _COMPILATION_FLAGS
    ] = CompilationConfig()
    """The compile stack, as JSON or one key at a time: -cc.mode=none."""
    tensor_parallel_size: Annotated[PositiveNumber, Flag("Parallelism", ("--tp", "-tp"))] = 1
    """Ranks that share the model."""
    ray_address: Annotated[Name | None, Flag("Parallelism")] = None
    """Ray cluster to place ranks on, as HOST:PORT; by default a local one."""
    allow_insecure_ray: Annotated[bool, Flag("Parallelism")] = False
    """Use a cluster that asks for no token."""
    heartbeat_timeout: Annotated[Seconds, Field(gt=0), Flag("Parallelism")] = 10.0
    """Seconds of a rank's silence that end the server."""
    check_rank_tokens: Annotated[bool, Flag("Parallelism")] = False
    """Choose tokens on every rank and compare."""

    @model_validator(mode="after")
    def _check_address(self) -> Self:
        beside = sorted(self.model_fields_set & {"host", "port"})
        if self.uds is not None and beside:
            raise ValueError(f"`uds` replaces `{'` and `'.join(beside)}`; give one or the other")
        return self

    @model_validator(mode="after")
    def _check_ranks(self) -> Self:
        beside = sorted(self.model_fields_set & _OF_SEVERAL_RANKS)
        if self.tensor_parallel_size == 1 and beside:
            raise ValueError(
                f"`{'` and `'.join(beside)}` act on several ranks only; remove it, or ask for them"
                " with `--tp`"
            )
        return self
