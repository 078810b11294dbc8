"""Readers and writers of the formats in which clusters and jobs come."""
