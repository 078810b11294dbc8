"""The cluster as hardware: its data types, topology, links, failures, and how fragmented it is."""
