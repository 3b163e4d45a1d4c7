"""Tallies say what prometheus_client's own types would."""

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import HistogramMetricFamily

from serve_shim.server.metrics.tally import Distribution, Total


def test_distribution_has_the_buckets_of_a_histogram() -> None:
    bounds, values = (0.001, 0.5, 1, 20.0), [0.0005, 0.001, 0.4, 0.5, 0.500001, 1.0, 7.0, 20.0, 21]
    ours = Distribution(bounds)
    theirs = Histogram("x", "words", registry=CollectorRegistry(), buckets=bounds)
    for value in values:
        ours.observe(value)
        theirs.observe(value)
    family = HistogramMetricFamily("x", "words", labels=())
    family.add_metric((), ours.buckets(), ours.sum)
    [expected] = theirs.collect()
    made = {(s.name, tuple(s.labels.items())): s.value for s in family.samples}
    assert made == {
        (s.name, tuple(s.labels.items())): s.value
        for s in expected.samples
        if not s.name.endswith("_created")
    }


def test_total_is_the_sum_of_what_was_added() -> None:
    total = Total()
    for amount in (0, 2, 0.5):
        total.add(amount)
    assert total.value == 2.5
