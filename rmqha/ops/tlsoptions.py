"""The TLS options of each process whose ports speak the remoting protocol: nodes and name servers."""

from typing import Any

from twisted.internet.interfaces import IReactorTime, IStreamServerEndpoint
from twisted.python import usage

from rmqha.ha.admission.allowlist import SlaveCheck
from rmqha.net.tls.endpoints import ServerTLS, TLSSources
from rmqha.ops.process import ProcessOptions
from rmqha.settings.confkeys import parse_override
from rmqha.settings.settings import SettingsError, TlsMode

TLS_CERTIFICATE: list[list[Any]] = [
    ["tls-cert", None, None, "PEM file: our certificate, with its intermediate certificates; enables TLS"],
    ["tls-key", None, None, "PEM file: the private key of the certificate; default: the file of --tls-cert"],
]
TLS_VERIFY: list[Any] = [
    "tls-verify-slaves",
    None,
    "every client must show a certificate that an authority of --tls-ca has signed",
]


class TLSOptions(ProcessOptions):
    """Reads TLS_CERTIFICATE, ``tls-ca``, TLS_VERIFY and ``--set``."""

    tls: TLSSources

    def __init__(self) -> None:
        self._overrides: dict[str, str] = {}
        ProcessOptions.__init__(self)

    def opt_set(self, text: str) -> None:
        """a setting, as KEY=VALUE; may be repeated"""
        try:
            key, value = parse_override(text)
        except SettingsError as error:
            raise usage.UsageError(str(error)) from error
        self._overrides[key] = value

    @property
    def verifies_peers(self) -> bool:
        """Whether every client of a TLS port must show a certificate."""
        return bool(self["tls-verify-slaves"])

    def read_tls(self, mode: TlsMode | None) -> None:
        """Read the files. ``mode`` says which clients the remoting ports accept. Raises ValueError."""
        self.tls = TLSSources(self["tls-cert"], self["tls-key"], self["tls-ca"], self.verifies_peers, serves=True)
        if mode is TlsMode.ENFORCING and self.tls.server is None:
            raise SettingsError("tls.server.mode=enforcing needs --tls-cert")
        if self.verifies_peers and mode is not None and mode is not TlsMode.ENFORCING:
            raise SettingsError(
                f"tls.server.mode={mode.value} accepts clients without certificates, which contradicts "
                "--tls-verify-slaves"
            )


def secured(
    endpoint: IStreamServerEndpoint,
    tls: ServerTLS | None,
    mode: TlsMode | None,
    clock: IReactorTime,
    check: SlaveCheck,
) -> tuple[IStreamServerEndpoint, str]:
    """The endpoint of a remoting port, with TLS if there is a certificate and ``mode`` wants it, and words for it.

    ``check`` counts the peers that are refused.
    """
    if tls is None or mode is TlsMode.DISABLED:
        return endpoint, "plain"
    takes_plain = mode is TlsMode.PERMISSIVE
    return tls.endpoint(endpoint, clock, check.refused, takes_plain), f"{tls}{', or plain' if takes_plain else ''}"
