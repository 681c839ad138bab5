"""Hostile strangers at the ports of real nodes, and what honest clients notice of them."""
