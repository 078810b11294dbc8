"""What policies are worth: cases are played, compared, and told in tables, words, figures, cards and a release's record."""
