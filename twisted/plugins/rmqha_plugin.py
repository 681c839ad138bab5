"""Names our plugins to Twisted. Listing plugins imports neither rmqha nor a reactor, so neither does this module."""

from typing import Any

from twisted.application.service import ServiceMaker
from twisted.internet.interfaces import IStreamClientEndpoint, IStreamClientEndpointStringParserWithReactor
from twisted.plugin import IPlugin
from zope.interface import implementer


@implementer(IPlugin, IStreamClientEndpointStringParserWithReactor)
class TLSAddressParser:
    """Makes endpoints of strings such as ``rmqtls:broker-a:10912``, see ``rmqha.net.tls.addresses``."""

    prefix = "rmqtls"

    def parseStreamClient(self, reactor: Any, *args: Any, **kwargs: Any) -> IStreamClientEndpoint:
        from rmqha.net.tls.addresses import parse_parameters

        return parse_parameters(reactor, *args, **kwargs)


class OurServiceMaker(ServiceMaker):
    """Imports its module when twistd asks for the options of the plugin."""

    @property
    def options(self) -> Any:
        from rmqha.kit.collecting import imports_are_kept

        with imports_are_kept():
            return super().options


rmqha = OurServiceMaker("rmqha", "rmqha.tap", "RocketMQ HA: commit log replication, slave or master.", "rmqha")
rmqha_namesrv = OurServiceMaker("rmqha-namesrv", "rmqha.namesrv_tap", "RocketMQ's name server.", "rmqha-namesrv")
rmqha_tls_addresses = TLSAddressParser()
