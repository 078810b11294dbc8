"""Readers of the formats in which clusters and jobs come; one file per source."""
