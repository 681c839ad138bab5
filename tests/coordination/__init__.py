"""Tests of ``rmqha.coordination``: the client, the witness, etcd and the model."""
