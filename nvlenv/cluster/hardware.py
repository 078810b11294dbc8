"""The numbers of an NVL72, and what they are taken to mean, said once."""

from __future__ import annotations

NODES_PER_RACK, GPUS_PER_NODE = 18, 4
RACK_GPUS = NODES_PER_RACK * GPUS_PER_NODE
NVLINK, NETWORK = 900.0, 50.0  # GB/s per GPU inside a rack and, by one port of 400 Gb/s for each, between racks
SLICE_NODES = 16  # what vendors promise of a rack's nodes, and so the slice that counts
HERO_SHARE = 0.25  # a job that asks for this share of the cluster is a hero
