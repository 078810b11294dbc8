"""What policies are worth: cases are played and compared, and told in tables, words, figures, cards and a record."""
