"""Owns rotary position frequencies and their cos/sin cache."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class RopeScaling(Protocol):
    """How a checkpoint stretches the base frequencies to a longer context."""

    def scale(self, frequencies: Tensor, theta: float) -> tuple[Tensor, float]:
        """Return the scaled float32 frequencies [rot/2] and a factor for cos and sin."""
        ...


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Position interpolation: every frequency is divided by `factor` (arXiv:2306.15595)."""

    factor: float

    def scale(self, frequencies: Tensor, theta: float) -> tuple[Tensor, float]:
        """Return the frequencies divided by `factor`; `theta` is not used."""
        return frequencies / self.factor, 1.0


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1: long wavelengths are interpolated, short ones kept, a ramp between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int

    def scale(self, frequencies: Tensor, theta: float) -> tuple[Tensor, float]:
        """Return the frequencies scaled by wavelength; `theta` is not used."""
        turns = self.original_max_position * frequencies / (2 * math.pi)
        ramp = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        keep = ramp.clamp(0.0, 1.0)
        return (1 - keep) * frequencies / self.factor + keep * frequencies, 1.0


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (arXiv:2309.00071): interpolation by number of turns, and a temperature on attention.

    `attention_factor` multiplies cos and sin. `truncate` rounds the ramp's ends outwards.
    """

    factor: float
    original_max_position: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def scale(self, frequencies: Tensor, theta: float) -> tuple[Tensor, float]:
        """Return the blended frequencies and `attention_factor`."""
        half = frequencies.shape[0]
        low, high = self._ramp_ends(2 * half, theta)
        index = torch.arange(half, dtype=torch.float32)
        interpolate = ((index - low) / (high - low)).clamp(0.0, 1.0)
        blended = frequencies / self.factor * interpolate + frequencies * (1 - interpolate)
        return blended, self.attention_factor

    def _ramp_ends(self, dim: int, theta: float) -> tuple[float, float]:
        low = self._dim_of_turns(self.beta_fast, dim, theta)
        high = self._dim_of_turns(self.beta_slow, dim, theta)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        return low, high if high != low else high + 0.001

    def _dim_of_turns(self, turns: float, dim: int, theta: float) -> float:
        wavelengths = self.original_max_position / (turns * 2 * math.pi)
        return dim * math.log(wavelengths) / (2 * math.log(theta))


@dataclass(frozen=True, slots=True)
class FrequencyFactors:
    """One divisor for each frequency, as GGUF stores Llama 3.1's scaling."""

    factors: tuple[float, ...]

    def scale(self, frequencies: Tensor, theta: float) -> tuple[Tensor, float]:
        """Return the frequencies divided one by one; `theta` is not used."""
        return frequencies / torch.tensor(self.factors, dtype=torch.float32), 1.0


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Base `theta` of the geometric frequencies and the scaling on top, None for none."""

    theta: float
    scaling: RopeScaling | None = None


def yarn_attention_factor(
    factor: float, mscale: float | None = None, mscale_all_dim: float | None = None
) -> float:
    """Return YaRN's default temperature for `factor`, as a ratio where both mscales are set."""
    if mscale and mscale_all_dim:
        return _temperature(factor, mscale) / _temperature(factor, mscale_all_dim)
    return _temperature(factor, 1.0)


def _temperature(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def build_cos_sin_cache(
    config: RopeConfig, head_dim: int, num_positions: int, device: torch.device | None = None
) -> Tensor:
    """Return float32 [num_positions, head_dim]: cos of each frequency, then sin of each."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (config.theta**exponents)
    factor = 1.0
    if config.scaling is not None:
        frequencies, factor = config.scaling.scale(frequencies, config.theta)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    cache = torch.empty(num_positions, head_dim, dtype=torch.float32)
    half = head_dim // 2
    torch.cos(angles, out=cache[:, :half])
    torch.sin(angles, out=cache[:, half:])
    if factor != 1.0:
        cache.mul_(factor)
    return cache.to(device) if device is not None else cache
