"""What a poll passes through: from the question to the forms of the reply."""
