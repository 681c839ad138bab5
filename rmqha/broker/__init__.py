"""What answers clients, and asks other brokers (spec/remoting.md).

In reading order: ``remoting`` (the protocol, both ends), ``runtimeinfo`` (what a broker says of itself, and what that
tells a slave or an operator).
"""
