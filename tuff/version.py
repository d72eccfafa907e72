"""The version of the package, in which library and server come together."""

__version__ = "0.1.0"
