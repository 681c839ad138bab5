"""Tests of automatic failover. ``clusters`` has a cluster's keys in memory; ``cluster`` is one of real nodes."""
