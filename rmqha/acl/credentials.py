"""Reads the credentials of a client: from a ``tools.yml`` as RocketMQ's tools have it, or from the environment."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rmqha.acl.signing import Credentials, Signer
from rmqha.acl.yamlfile import AclFileError, read_yaml

VARIABLES = {
    "accessKey": "RMQHA_ACCESS_KEY",
    "secretKey": "RMQHA_SECRET_KEY",
    "securityToken": "RMQHA_SECURITY_TOKEN",
}
"""The names in the environment, by the names in a file."""


def read_credentials(path: Path) -> Credentials:
    """The accessKey, the secretKey and, if there is one, the securityToken in a YAML file. Raises AclFileError."""
    content = read_yaml(path)
    missing = [name for name in ("accessKey", "secretKey") if content.get(name) in (None, "")]
    if missing:
        raise AclFileError(f"{path}: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    return _made(content, str(path))


def credentials_of_environment(environment: Mapping[str, str] = os.environ) -> Credentials | None:
    """The credentials in RMQHA_ACCESS_KEY and RMQHA_SECRET_KEY; None without them. Raises AclFileError for half."""
    found = {key: environment[name] for key, name in VARIABLES.items() if environment.get(name)}
    missing = [VARIABLES[key] for key in ("accessKey", "secretKey") if key not in found]
    if not found:
        return None
    if missing:
        raise AclFileError(f"{' and '.join(missing)} must be set too: credentials are an access key and a secret key")
    return _made(found, "the environment")


def _made(content: Mapping[str, Any], source: str) -> Credentials:
    token = content.get("securityToken")
    for name in ("accessKey", "secretKey", "securityToken"):
        if isinstance(content.get(name), dict | list):
            raise AclFileError(f"{source}: {name} is not a text")
    try:
        return Credentials(
            str(content["accessKey"]), str(content["secretKey"]), str(token) if token not in (None, "") else None
        )
    except ValueError as error:
        raise AclFileError(f"{source}: {error}") from error


def make_signer(path: Path | None) -> Signer | None:
    """What signs requests: with the credentials of the file if one is given, else of the environment, if any.

    Raises AclFileError.
    """
    found = credentials_of_environment() if path is None else read_credentials(path)
    return None if found is None else Signer(found)


def reread_credentials(signer: Signer | None, path: Path | None) -> bool:
    """Read the file again, and sign with its credentials from now on. Returns whether they differ from before.

    Raises AclFileError; the credentials then stay as they are.
    """
    if signer is None or path is None:
        return False
    before, signer.credentials = signer.credentials, read_credentials(path)
    return before != signer.credentials
