"""The server process: settings, the clock, HTTP, health, metrics, and how components are wired."""
