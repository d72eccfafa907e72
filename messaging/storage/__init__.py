"""The engines below the three tables: bytes in, bytes out."""
