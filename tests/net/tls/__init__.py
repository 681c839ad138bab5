"""TLS on the HA and remoting ports, and who may be a slave."""
