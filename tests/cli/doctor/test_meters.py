"""Reading the meters of a control plane."""

from math import inf

from stoker.cli.doctor.serving import Meters, shown_s

TEXT = """\
# HELP stoker_commit_seconds how long
# TYPE stoker_commit_seconds histogram
stoker_commit_seconds_bucket{le="0.01"} 50.0
stoker_commit_seconds_bucket{le="0.1"} 98.0
stoker_commit_seconds_bucket{le="1.0"} 99.0
stoker_commit_seconds_bucket{le="+Inf"} 100.0
stoker_jobs{state="pending",odd="a\\"}b"} 3
stoker_epoch 7
nonsense here and there
stoker_empty_bucket{le="+Inf"} 0
"""


def test_a_quantile_is_the_bound_of_the_bucket_that_reaches_it() -> None:
    meters = Meters(TEXT)
    assert [meters.at_most("stoker_commit_seconds", share) for share in (0.5, 0.9, 0.99, 1)] == [0.01, 0.1, 1.0, inf]
    assert meters.at_most("stoker_empty", 0.5) is None
    assert meters.at_most("stoker_no_such", 0.5) is None


def test_values_and_labels_are_read_and_nonsense_is_passed_over() -> None:
    meters = Meters(TEXT)
    assert meters.value("stoker_epoch") == 7
    assert meters.value("stoker_nothing") is None
    (sample,) = meters.all("stoker_jobs")
    assert (sample.labels["state"], sample.value) == ("pending", 3)


def test_a_time_is_shown_in_a_unit_that_people_read() -> None:
    assert [shown_s(each) for each in (0.0005, 0.25, 2.5, inf)] == ["0.5 ms", "250 ms", "2.5 s", "more than an hour"]
