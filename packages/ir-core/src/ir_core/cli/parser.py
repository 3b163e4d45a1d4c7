"""The command line of `ir`: commands, options and help. Imports nothing but argparse."""

import argparse

_EXPLAIN = """
Show which implementation a call of OP gets, and what every other provider says to it.

The activations get the given shape and dtype. Every other tensor is as the op's input generator
makes it for that dtype, with the last dim of the activations where it had the generator's own.
`--arg` sets one parameter: a scalar (epsilon=1e-6), none, or a tensor (weight=4096:f32).

The weights of an op that has them lie as a loader would pack them: in the layout of the first
provider that accepts the arguments in one that it reads. `--arg layout=plain` sets another.

What a server has chosen by timing counts only with `--autotuned`, which names the directory
`autotune` in its compile cache; `--mode inductor` then stands for a compiled model.
"""

_CHECK = """
Run the conformance suite. The exit code is 1 if a check failed, and 3 if nothing could be checked
here, for want of a device or of arguments that the predicates accept.
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; `options.command` names the chosen one."""
    parser = argparse.ArgumentParser(prog="ir", description="Ops, implementations and the choice.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_list(commands)
    _add_explain(commands)
    _add_check(commands)
    _add_bench(commands)
    for command in commands.choices.values():
        command.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def _add_list(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("list", help="ops, their providers, and what can run here")
    parser.add_argument("op", nargs="*", metavar="OP", help="only these ops")


def _add_explain(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "explain",
        help="which implementation a call gets, and why not another",
        description=_EXPLAIN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("op", metavar="OP")
    parser.add_argument("--dtype", default="bfloat16", help="of the activations (default bfloat16)")
    parser.add_argument("--shape", help="of the activations, as 8x4096")
    parser.add_argument("--device", default="cpu", help="of the tensors (default cpu)")
    parser.add_argument(
        "--arg", action="append", default=[], metavar="NAME=VALUE", help="set one parameter"
    )
    parser.add_argument("--priority", metavar="A,B", help="a user's provider list for OP")
    parser.add_argument(
        "--mode", choices=("eager", "inductor"), help="whose platform defaults (default eager)"
    )
    parser.add_argument("--autotuned", metavar="DIR", help="choices that a server has timed")


def _add_check(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("check", help="run the conformance suite", description=_CHECK)
    parser.add_argument("name", nargs="*", metavar="DIST|OP", help="default: everything registered")
    parser.add_argument("--provider", action="append", metavar="P", help="only this provider")
    parser.add_argument(
        "--dtype", action="append", metavar="D", help="only activations of this dtype"
    )
    parser.add_argument("--junit", metavar="FILE", help="also write JUnit XML")


def _add_bench(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("bench", help="time providers side by side")
    parser.add_argument("op", nargs="?", metavar="OP", help="whose workloads to time")
    parser.add_argument(
        "--overhead", action="store_true", help="time the dispatch of a call instead"
    )
    parser.add_argument("--dtype", default="bfloat16", help="of the activations (default bfloat16)")
    parser.add_argument("--provider", action="append", metavar="P", help="only this provider")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="per workload, all providers (default 1)"
    )
