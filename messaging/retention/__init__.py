"""What is kept, what is dropped and when: the decision, and what carries it out."""
