import io
import json
import logging
from datetime import datetime

from serve_shim.cli.log import LOGGERS, configure_logging


def test_text_is_one_line_with_level_logger_and_message():
    stream = io.StringIO()
    configure_logging("INFO", "text", stream)
    logging.getLogger("serve_shim.engine").info("%d blocks", 7)
    [line] = stream.getvalue().splitlines()
    assert line.startswith("INFO ")
    assert "[serve_shim.engine:" in line
    assert line.endswith(" 7 blocks")


def test_continued_lines_are_indented_so_that_each_record_is_recognised():
    stream = io.StringIO()
    configure_logging("INFO", "text", stream)
    logging.getLogger("serve_shim").info("a table:\nrow")
    assert stream.getvalue().endswith("a table:\n    row\n")


def test_json_is_one_object_a_line():
    stream = io.StringIO()
    configure_logging("INFO", "json", stream)
    logging.getLogger("ir_core.dispatch").warning("a\n%s", '"b"')
    [line] = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert datetime.fromisoformat(entry.pop("time")).utcoffset() is not None
    assert entry == {"level": "WARNING", "logger": "ir_core.dispatch", "message": 'a\n"b"'}


def test_json_holds_the_error():
    stream = io.StringIO()
    configure_logging("INFO", "json", stream)
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("serve_shim").exception("it failed")
    assert "ValueError: why" in json.loads(stream.getvalue())["error"]


def test_the_level_holds_for_all_our_loggers():
    stream = io.StringIO()
    configure_logging("WARNING", "text", stream)
    for name in LOGGERS:
        logging.getLogger(f"{name}.part").info("hidden")
        logging.getLogger(f"{name}.part").warning("shown by %s", name)
    assert [line.split()[-1] for line in stream.getvalue().splitlines()] == list(LOGGERS)


def test_a_second_call_replaces_the_first():
    first, second = io.StringIO(), io.StringIO()
    configure_logging("INFO", "text", first)
    configure_logging("INFO", "text", second)
    logging.getLogger("serve_shim").info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


def test_records_of_others_are_left_alone():
    stream = io.StringIO()
    configure_logging("DEBUG", "text", stream)
    logging.getLogger("somebody.else").error("not ours")
    assert stream.getvalue() == ""


def test_the_access_log_is_one_of_ours():
    stream = io.StringIO()
    configure_logging("INFO", "text", stream)
    logging.getLogger("serve_shim.access").warning("POST /v1/completions 500")
    assert "[serve_shim.access:" in stream.getvalue()
