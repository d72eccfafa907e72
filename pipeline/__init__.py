"""Spark jobs over topics: archive, compact, replay, audit, lag (docs/pipelines.md).

Jobs transform rows only with expressions of Spark SQL, so executors do not need this package.
"""
