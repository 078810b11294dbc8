"""Commands that look at a cluster's files once, one module each, and print tables or JSON."""
