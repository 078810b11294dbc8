"""Commands that look at a cluster's files once and print tables or JSON."""
