"""The engines below the tables, bytes in and bytes out, and the rows over an engine."""
