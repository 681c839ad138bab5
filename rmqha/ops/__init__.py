"""What operators see and set.

``logs`` (where events go), ``statefile`` (state.json while a node runs), ``status``, ``cleaning`` (retention).
"""
