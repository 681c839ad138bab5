"""Tests of the passes over ordinary sends."""
