"""The marks of tests that need a real HBase. The programs that only start one need no pytest."""

import pytest

from tests.hbase.local_hbase import why_missing

NEEDS_HBASE = [  # marks of a module whose tests need a real HBase
    pytest.mark.slow,
    pytest.mark.hbase,
    pytest.mark.skipif(why_missing() is not None, reason=str(why_missing())),
]
