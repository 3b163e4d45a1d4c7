from serve_shim.settings import Settings
from serve_shim.settings.arguments import from_arguments
from serve_shim.settings.option import option_names, suggest_option
from serve_shim.settings.schema import settings_schema
from serve_shim.settings.wrong_setting import WrongSettingError

ROOT = settings_schema(Settings)


def test_every_option_is_known_to_the_reader():
    for name in option_names(ROOT):
        given = from_arguments(ROOT, [f"{name}=x"]).given
        errors = [str(item) for item in given if isinstance(item, WrongSettingError)]
        assert not any("unknown" in error for error in errors), name


def test_options_are_named_once():
    names = option_names(ROOT)
    assert len(names) == len(set(names))
    assert {
        "-tp",
        "--tp",
        "-cc",
        "-O",
        "--port",
        "--max-num-seqs",
        "--config",
        "--disable-pass",
    } <= set(names)


def test_a_suggestion_is_given_only_when_one_is_near():
    assert suggest_option(ROOT, "--tensor_paralel_size").startswith(
        " Did you mean `--tensor-parallel-size`"
    )
    assert suggest_option(ROOT, "--qqqqqqqq") == ""
