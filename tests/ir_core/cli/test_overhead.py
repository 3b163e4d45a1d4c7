from ir_core.cli.overhead import measure_overhead


def test_overhead_measures_every_way_to_call() -> None:
    overhead = measure_overhead(0.0, num_predicates=2)
    assert overhead.bare > 0
    assert overhead.num_predicates == 2
    lines = overhead.to_text().splitlines()
    assert len(lines) == 4
    assert "2 predicates" in lines[2]
