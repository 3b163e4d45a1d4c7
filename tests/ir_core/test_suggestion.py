from ir_core.suggestion import suggest


def test_a_near_name_is_suggested_and_all_are_listed() -> None:
    answer = suggest("rms_nrm", ["silu", "rms_norm"])
    assert answer == "did you mean `rms_norm`? Valid: `rms_norm`, `silu`."


def test_a_name_far_from_all_gets_the_list_alone() -> None:
    assert suggest("zzz", ["b", "a"]) == "Valid: `a`, `b`."


def test_nothing_to_choose_from_is_said() -> None:
    assert suggest("x", []) == "None is registered."
