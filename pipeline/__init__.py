"""Jobs of Spark over topics: archive, compact, replay, audit, retry, lag (docs/pipelines.md).

In reading order: hours, manifest, failures, frames, archive, compact, replay, audit, retry, lag,
program. What a job does to rows is expressions of Spark alone, so that its executors need nothing
of this.
"""
