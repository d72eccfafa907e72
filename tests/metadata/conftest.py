"""Settings of the tests of metadata."""

import pytest

# The suite that the tests of each store import shows both sides of a failed comparison, too.
pytest.register_assert_rewrite("tests.metadata.conformance", "tests.metadata.store_machine")
