"""What operators see: ``logs`` (where events go), ``statefile`` (state.json while a node runs), ``status``."""
