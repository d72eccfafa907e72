"""The user's SQL rows and messages in one transaction, which the database decides (decision 0045)."""
