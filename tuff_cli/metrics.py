"""Reads the samples of `/metrics`, for `tuff top` and `tuff doctor` (protocol §7)."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Sample(NamedTuple):
    """One sample: its name, its labels and its value."""

    name: str
    labels: Mapping[str, str]
    value: float


def samples_in(text: str) -> list[Sample]:
    """The samples of a page in the text format of Prometheus."""
    from prometheus_client.parser import text_string_to_metric_families  # slow to load

    families = text_string_to_metric_families(text)
    return [
        Sample(each.name, each.labels, each.value) for family in families for each in family.samples
    ]


def value_of(samples: Iterable[Sample], name: str, **labels: str) -> float | None:
    """The sum of the samples with this name and these labels; None without any."""
    values = [
        each.value
        for each in samples
        if each.name == name and labels.items() <= each.labels.items()
    ]
    return sum(values) if values else None


def quantile(samples: Iterable[Sample], name: str, share: float, **labels: str) -> float | None:
    """The upper bound of the bucket in which this share of the observations of a histogram ends;
    None without observations. Infinite if it is above all bounds."""
    counts: dict[float, float] = {}
    for each in samples:
        if each.name == f"{name}_bucket" and labels.items() <= each.labels.items():
            bound = float(each.labels["le"])
            counts[bound] = counts.get(bound, 0.0) + each.value
    total = max(counts.values(), default=0.0)
    if total == 0:
        return None
    return min(bound for bound, count in counts.items() if count >= share * total)
