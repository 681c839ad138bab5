"""Who may reach a witness, as a test says."""

from zope.interface import implementer

from rmqha.coordination.witness.http import IPeers


@implementer(IPeers)
class PeersDouble:
    """Everybody may connect while it is ``allowed``, and all are of one ``network`` if it has a name."""

    def __init__(self, network: str = "network") -> None:
        self.allowed = True
        self.network = network

    def may_connect(self, host: str) -> bool:
        return self.allowed

    def network_of(self, host: str) -> str:
        return self.network or host

    def wrong_login(self, host: str) -> None:
        pass
