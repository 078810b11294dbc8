"""What policies are worth: episodes, cases, statistics, tables, figures, the release."""
