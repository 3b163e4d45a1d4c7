import subprocess
import sys

from ir_core.cli.parser import build_parser


def test_parser_reads_every_option_of_explain() -> None:
    options = build_parser().parse_args(
        [
            "explain",
            "rms_norm",
            "--dtype",
            "f32",
            "--shape",
            "2x4",
            "--json",
            "--arg",
            "a=1",
            "--arg",
            "b=2",
            "--priority",
            "x,y",
        ]
    )
    assert (options.command, options.op, options.dtype) == ("explain", "rms_norm", "f32")
    assert (options.shape, options.arg, options.priority) == ("2x4", ["a=1", "b=2"], "x,y")
    assert options.json is True


def test_parser_takes_several_names_and_providers() -> None:
    options = build_parser().parse_args(
        ["check", "toy", "rms_norm", "--provider", "a", "--provider", "b"]
    )
    assert options.name == ["toy", "rms_norm"]
    assert options.provider == ["a", "b"]


def test_wrong_option_is_refused_before_any_command_loads() -> None:
    code = (
        "import sys\n"
        "from ir_core.cli import main\n"
        "try:\n"
        "    main(['list', '--jsno'])\n"
        "except SystemExit:\n"
        "    late = {'ir_core.cli.commands', 'ir_core.testing', 'ir_kernels'}\n"
        "    sys.exit(97 if late & set(sys.modules) else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0
