"""What the pages ask of a node is what nodes and the tests' doubles have."""

from zope.interface import Interface
from zope.interface.verify import verifyClass, verifyObject

from rmqha.namesrv_tap import NameServerProcess
from rmqha.node.node import Node
from rmqha.node.opennode import OpenNode
from rmqha.ops.listening import IPortOwner
from rmqha.web.interfaces import ILiveNode, IShownNode
from tests.web.nodes import NodeWebTestCase


class InterfaceTests(NodeWebTestCase):
    def test_the_doubles(self) -> None:
        verifyObject(ILiveNode, self.begin())
        verifyObject(IShownNode, self.shown)

    def test_the_product(self) -> None:
        pairs: tuple[tuple[type[Interface], type], ...] = (
            (IShownNode, Node),
            (ILiveNode, OpenNode),
            (IPortOwner, NameServerProcess),
        )
        for interface, implementer in pairs:
            verifyClass(interface, implementer)
