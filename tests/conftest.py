"""Settings that every test shares."""

from hypothesis import HealthCheck, settings

# Tests share two cores with others: how long one example takes says nothing about the code.
settings.register_profile(
    "tuff", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tuff")
