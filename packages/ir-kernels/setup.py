"""Hooks the kernel build into setuptools; all metadata stand in pyproject.toml."""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import kernel_build  # noqa: E402


class BuildKernels(build_ext):
    """Build the library beside the package's modules; an install goes on without it."""

    def run(self) -> None:
        """Build into the source tree for editable installs, else into what becomes the wheel."""
        in_source = self.inplace or self.editable_mode
        parent = HERE / "src" if in_source else Path(self.build_lib)
        report = kernel_build.build(parent / "ir_kernels", os.environ)
        if not report.built:
            print(f"ir-kernels: no compiled kernels: {report.reason}", file=sys.stderr)
        elif not report.cuda.built:
            print(f"ir-kernels: no kernels for CUDA: {report.cuda.reason}", file=sys.stderr)

    def get_outputs(self) -> list[str]:
        """Nothing that setuptools should look for: the library may be missing."""
        return []

    def get_output_mapping(self) -> dict[str, str]:
        """As `get_outputs`."""
        return {}


setup(
    ext_modules=[Extension("ir_kernels.ir_kernels_c", sources=[])],
    cmdclass={"build_ext": BuildKernels},
)
