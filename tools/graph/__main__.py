"""One layer of a model as it is traced, after each pass, and lowered, with the reasons.

The whole model is traced and compiled; what the layer's places became is printed.
"""

import argparse
import sys
from collections.abc import Sequence

from ir_passes.config import DynamicShapesType


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the layer's story; 2 where the model or the options cannot be used."""
    options = _parser().parse_args(arguments)
    # They import torch, which help and a wrong option do not need.
    from ir_core import IrError  # noqa: PLC0415
    from ir_passes import PassesError  # noqa: PLC0415
    from serve_shim.errors import ServeShimError  # noqa: PLC0415
    from tools.graph.story import tell  # noqa: PLC0415
    from tools.graph.subject import Subject  # noqa: PLC0415

    try:
        subject = Subject.load(
            options.model, options.dtype, options.backend, DynamicShapesType(options.shapes)
        )
        for line in tell(subject, options.layer):
            print(line)
    except (IrError, PassesError, ServeShimError) as error:
        print(f"graph: error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="graph", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "model", nargs="?", help="directory, GGUF file or hub name; the embedded model by default"
    )
    parser.add_argument(
        "--layer", type=int, default=1, help="counted from 0; the second by default"
    )
    parser.add_argument(
        "--backend", default="eager", help="compiler of the pieces; eager only lowers them"
    )
    parser.add_argument(
        "--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"]
    )
    parser.add_argument(
        "--shapes", default="unbacked", choices=[each.value for each in DynamicShapesType]
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
