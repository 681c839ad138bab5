"""mqadmin's requests about the accounts, 50 to 54: they change the files of the rules (spec/remoting.md 13.4)."""

import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import yaml
from twisted.internet.defer import DeferredLock
from twisted.logger import Logger

from rmqha.acl.files import PLAIN_FILE
from rmqha.acl.gate import AclGate
from rmqha.acl.rules import PERMISSIONS, parse_rules
from rmqha.acl.yamlfile import MAX_FILE_BYTES, AclFileError, read_yaml
from rmqha.kit.events import Event
from rmqha.kit.threads import CallInThread
from rmqha.remoting.header import Header, shown
from rmqha.remoting.protocol import Processors, RemotingProtocol, RequestRefused
from rmqha.store.log.mappedfile import DISK
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode

UPDATE_FAILED, DELETE_FAILED, WHITE_FAILED = 209, 210, 211
"""Java's codes of answers."""
BACKUP_SUFFIX = ".bak"
HIDDEN = "******"
TEXTS = ("secretKey", "whiteRemoteAddress", "defaultTopicPerm", "defaultGroupPerm")
LISTS = ("topicPerms", "groupPerms")
WHITE = "globalWhiteRemoteAddresses"

Content = dict[str, Any]
Edit = Callable[[Content], None]
"""Changes the content of a file. Raises ValueError."""


class BrokerNames(NamedTuple):
    """What the answer to clusterAclConfigVersion says of the broker."""

    address: str
    name: str
    cluster: str


class AclAdminProcessor:
    """Answers mqadmin's requests about the accounts. The gate lets only administrators send them.

    A change replaces a file at once and keeps the previous one as ``FILE.bak``. YAML's comments are only there then.
    The answer is sent when the change counts.
    """

    _log = Logger()

    def __init__(self, gate: AclGate, run_in_thread: CallInThread, names: Callable[[], BrokerNames]) -> None:
        self._gate = gate
        self._run_in_thread = run_in_thread
        self._names = names
        self._lock = DeferredLock()

    def processors(self) -> Processors:
        """By request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: self._update_account,
            RequestCode.DELETE_ACL_CONFIG: self._delete_account,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: self._update_white_addresses,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: self._version,
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: self._accounts,
        }

    def _file_of(self, access_key: str) -> Path:
        return self._gate.found.file_of.get(access_key, self._gate.files.folder / PLAIN_FILE)

    def _update_account(
        self, connection: RemotingProtocol, request: RemotingCommand
    ) -> Coroutine[Any, Any, RemotingCommand]:
        fields = Header(request)
        access_key = fields.text("accessKey")

        def edit(content: Content) -> None:
            accounts = _list_in(content, "accounts")
            account = next((each for each in accounts if str(each.get("accessKey")) == access_key), None)
            if account is None:
                account = {"accessKey": access_key}
                accounts.append(account)
            for name in TEXTS:
                value = fields.text(name, None)
                if value is not None:
                    account[name] = value
            if fields.text("admin", None) is not None:
                account["admin"] = fields.boolean("admin")
            for name in LISTS:
                value = fields.text(name, None)
                if value is not None:
                    account[name] = _pieces(value)

        defaults = [request.ext_fields[name] for name in TEXTS if name.endswith("Perm") and name in request.ext_fields]
        entries = [each for name in LISTS for each in _pieces(request.ext_fields.get(name, ""))]
        _check_permissions([*defaults, *(each.partition("=")[2] for each in entries)])
        what = f"changes the account {shown(access_key)}"
        return self._change(connection, self._file_of(access_key), edit, what, UPDATE_FAILED)

    def _delete_account(
        self, connection: RemotingProtocol, request: RemotingCommand
    ) -> Coroutine[Any, Any, RemotingCommand]:
        access_key = Header(request).text("accessKey")

        def edit(content: Content) -> None:
            accounts = _list_in(content, "accounts")
            kept = [each for each in accounts if str(each.get("accessKey")) != access_key]
            if len(kept) == len(accounts):
                raise ValueError(f"there is no account {shown(access_key)}")
            content["accounts"] = kept

        what = f"deletes the account {shown(access_key)}"
        return self._change(connection, self._file_of(access_key), edit, what, DELETE_FAILED)

    def _update_white_addresses(
        self, connection: RemotingProtocol, request: RemotingCommand
    ) -> Coroutine[Any, Any, RemotingCommand]:
        addresses = _pieces(Header(request).text("globalWhiteAddrs"))

        def edit(content: Content) -> None:
            content[WHITE] = addresses

        path = self._gate.files.folder / PLAIN_FILE
        return self._change(connection, path, edit, "changes the white addresses", WHITE_FAILED)

    async def _change(
        self,
        connection: RemotingProtocol,
        path: Path,
        edit: Edit,
        what: str,
        failed_code: int,
    ) -> RemotingCommand:
        """Edit a file, and answer when the change counts. Raises RequestRefused."""
        host, port = connection.peer_host
        await self._lock.acquire()
        try:
            await self._run_in_thread(lambda: edit_file(path, edit))
            await self._gate.reload()
        except (ValueError, OSError) as error:
            raise RequestRefused(failed_code, str(error)) from error
        finally:
            self._lock.release()
        self._log.warn(
            "{host}:{port} {what} in {path}",
            event=Event.ACCOUNTS_CHANGED,
            host=host,
            port=port,
            what=what,
            path=str(path),
        )
        return RemotingCommand(ResponseCode.SUCCESS)

    async def _version(self, _: RemotingProtocol, __: RemotingCommand) -> RemotingCommand:
        paths = list(self._gate.found.stamps)
        contents = await self._read(paths)
        versions = {str(path): version_of(content) for path, content in zip(paths, contents, strict=True)}
        names = self._names()
        plain = versions.get(str(self._gate.files.folder / PLAIN_FILE), version_of({}))
        return RemotingCommand(
            ResponseCode.SUCCESS,
            ext_fields={
                "version": orjson.dumps(plain).decode(),
                "allAclFileVersion": orjson.dumps(versions).decode(),
                "brokerAddr": names.address,
                "brokerName": names.name,
                "clusterName": names.cluster,
            },
        )

    async def _accounts(self, _: RemotingProtocol, __: RemotingCommand) -> RemotingCommand:
        """All accounts, but no secret key: Java shows them."""
        contents = await self._read(list(self._gate.found.stamps))
        accounts = [{**each, "secretKey": HIDDEN} for content in contents for each in _list_in(content, "accounts")]
        white = [str(each) for content in contents for each in content.get(WHITE) or [] if each is not None]
        body = orjson.dumps({"globalWhiteAddrs": white, "plainAccessConfigs": accounts}, default=str)
        return RemotingCommand(ResponseCode.SUCCESS, body=body)

    async def _read(self, paths: list[Path]) -> list[Content]:
        """The content of the files. Raises RequestRefused."""
        try:
            found: list[Content] = await self._run_in_thread(lambda: [_checked(read_yaml(path)) for path in paths])
        except ValueError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        return found


def _checked(content: Content) -> Content:
    """The content, if it is one of accounts. Raises ValueError."""
    parse_rules(content)
    return content


def _check_permissions(texts: list[str]) -> None:
    """A file may have other texts, which deny. In a change they are a mistake. Raises RequestRefused."""
    known = (*PERMISSIONS, "DENY")
    for text in texts:
        if text.strip() not in known:
            raise RequestRefused(UPDATE_FAILED, f"{shown(text)!r} is not one of {', '.join(known)}")


def _pieces(text: str) -> list[str]:
    return [piece.strip() for piece in text.split(",") if piece.strip()]


def _list_in(content: Content, name: str) -> list[Content]:
    """The list of this name; a new one if there is none."""
    found: list[Content] = content.get(name) or []
    content[name] = found
    return found


def version_of(content: Mapping[str, Any]) -> dict[str, int]:
    """The dataVersion in a file; zeros if there is none, or an invalid one."""
    with suppress(TypeError, ValueError, KeyError, IndexError):
        first = content["dataVersion"][0]
        return {"counter": int(first["counter"]), "timestamp": int(first["timestamp"])}
    return {"counter": 0, "timestamp": 0}


def edit_file(path: Path, edit: Edit) -> None:
    """Change the content of a file at once, and keep the previous file. A wrong result changes nothing.

    Raises ValueError, OSError.
    """
    exists = path.exists()
    content = _checked(read_yaml(path)) if exists else {}
    edit(content)
    version = version_of(content)
    content["dataVersion"] = [{"counter": version["counter"] + 1, "timestamp": time.time_ns() // 1_000_000}]
    parse_rules(content)
    data = yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode()
    if len(data) > MAX_FILE_BYTES:
        raise AclFileError(f"{path}: the file would be larger than {MAX_FILE_BYTES} bytes")
    mode = path.stat().st_mode & 0o777 if exists else 0o600
    if exists:
        backup = path.with_name(path.name + BACKUP_SUFFIX)
        backup.unlink(missing_ok=True)
        DISK.link(path, backup)
    DISK.replace(path, data, mode)
