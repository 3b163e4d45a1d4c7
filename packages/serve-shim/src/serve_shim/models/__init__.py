"""The Llama-family decoder on IR ops: its configuration, its modules and the list of families."""

from serve_shim.models.attention_step import AttentionStep
from serve_shim.models.causal_lm import CausalLM
from serve_shim.models.model_config import ModelConfig
from serve_shim.models.registry import FAMILIES, find_family, find_gguf_family
from serve_shim.models.rope import RopeConfig, build_cos_sin_cache
from serve_shim.models.shard import Shard
from serve_shim.models.sharding import ShardingPlan, plan_sharding

__all__ = [
    "FAMILIES",
    "AttentionStep",
    "CausalLM",
    "ModelConfig",
    "RopeConfig",
    "Shard",
    "ShardingPlan",
    "build_cos_sin_cache",
    "find_family",
    "find_gguf_family",
    "plan_sharding",
]
