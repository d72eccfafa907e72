"""The user's SQL rows and messages in one transaction that the database decides (0045)."""
