"""What a poll passes through: from the question to the encodings of the reply."""
