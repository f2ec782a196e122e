"""Where credentials come from: the standard chains of each cloud, never our configuration.

The environment is read by the clients themselves; here is what they do not do: AWS profiles and Azure
connection strings. Nothing in this module ever goes into a message.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from swamp.errors import AccessDenied, Misconfigured
from swamp.store.explain import Endpoint, Refusal, to_error
from swamp.values import value

_SECRETS = ("secret", "password", "token", "accesskey", "accountkey", "sas", "credential", "privatekey")
_AWS_ENV = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE")
_AWS_CONTAINER = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
_NEEDS_BOTO = ("sso_session", "sso_start_url", "role_arn", "credential_process", "credential_source")
_AZURE_ENV = (
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_MASTER_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
    "AZURE_STORAGE_CLIENT_ID",
    "AZURE_CLIENT_ID",
    "AZURE_STORAGE_USE_EMULATOR",
    "AZURE_FEDERATED_TOKEN_FILE",
    "IDENTITY_ENDPOINT",
)
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Published with every Azurite: an address, not a secret."""


@value
class Login:
    """What a client needs beyond its environment."""

    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    provider: Any = field(default=None, repr=False)
    region: str | None = None
    endpoint: str | None = None
    profile: str = "default"


def refuse_secrets(config: Mapping[str, Any]) -> None:
    """Configuration is written to files that people share."""
    for name in config:
        if any(word in name.replace("_", "").lower() for word in _SECRETS):
            raise Misconfigured(
                f"credentials do not belong into the configuration (`{name}`)",
                hint="use the environment, an AWS profile, `gcloud auth application-default login` or `az login`",
            )


def aws_login(environ: Mapping[str, str]) -> Login:
    profile = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"
    found = _profile(environ, profile)
    if found is None and profile != "default":
        raise Misconfigured(
            f'there is no AWS profile "{profile}"', hint="correct AWS_PROFILE or run `aws configure sso`"
        )
    values = found or {}
    place: dict[str, Any] = {"region": values.get("region"), "endpoint": values.get("endpoint_url"), "profile": profile}
    if any(environ.get(name) for name in (*_AWS_ENV, *_AWS_CONTAINER)):
        return Login(**place)
    if "aws_access_key_id" in values:
        return Login(settings=_static(values), **place)
    if any(name in values for name in _NEEDS_BOTO):
        return Login(provider=_boto_provider(profile), **place)
    if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        # Nothing is left that could log in; the client would go on and ask the machine's metadata service.
        raise to_error(Endpoint("s3", "s3", profile), Refusal("OPEN", code="NoCredentials"))
    return Login(**place)


def _static(values: Mapping[str, str]) -> dict[str, str]:
    names = {
        "aws_access_key_id": "access_key_id",
        "aws_secret_access_key": "secret_access_key",
        "aws_session_token": "session_token",
    }
    return {ours: values[theirs] for theirs, ours in names.items() if theirs in values}


def _boto_provider(profile: str) -> Any:
    """Single sign-on and assumed roles are boto's business; it is used if it is there."""
    if importlib.util.find_spec("boto3") is None:
        raise AccessDenied(
            f'run `eval "$(aws configure export-credentials --profile {profile} --format env)"` or install boto3: '
            f'the AWS profile "{profile}" uses single sign-on, a role or a helper program',
            hint="then run the command again",
        )
    import boto3  # type: ignore[import-untyped,unused-ignore]
    from obstore.auth.boto3 import Boto3CredentialProvider

    return Boto3CredentialProvider(boto3.Session(profile_name=profile))


def _profile(environ: Mapping[str, str], name: str) -> dict[str, str] | None:
    home = Path(environ.get("HOME") or Path.home())
    config = Path(environ.get("AWS_CONFIG_FILE") or home / ".aws" / "config").expanduser()
    shared = Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials").expanduser()
    section = "default" if name == "default" else f"profile {name}"
    parts = [_section(config, section), _section(shared, name)]
    present = [p for p in parts if p is not None]
    return {k: v for part in present for k, v in part.items()} if present else None


def _section(path: Path, name: str) -> dict[str, str] | None:
    if not path.exists():
        return None
    import configparser

    parser = configparser.RawConfigParser(strict=False, default_section="\0none")
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise Misconfigured(f"cannot read {path} ({type(error).__name__})", hint="correct the file") from None
    return dict(parser[name]) if parser.has_section(name) else None


def azure_login(environ: Mapping[str, str]) -> Login:
    text = environ.get("AZURE_STORAGE_CONNECTION_STRING")
    if text:
        return _from_connection_string(text)
    account = environ.get("AZURE_STORAGE_ACCOUNT_NAME") or environ.get("AZURE_STORAGE_ACCOUNT")
    settings: dict[str, Any] = {"account_name": account} if account else {}
    import shutil

    if not any(environ.get(name) for name in _AZURE_ENV) and shutil.which("az"):
        settings["use_azure_cli"] = True
    return Login(settings=settings, endpoint=environ.get("AZURE_STORAGE_ENDPOINT"))


def _from_connection_string(text: str) -> Login:
    fields = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
    if fields.get("UseDevelopmentStorage", "").lower() == "true":
        settings = {"account_name": AZURITE_ACCOUNT, "account_key": AZURITE_KEY}
        return Login(settings=settings, endpoint=f"http://127.0.0.1:10000/{AZURITE_ACCOUNT}")
    names = {"AccountName": "account_name", "AccountKey": "account_key", "SharedAccessSignature": "sas_key"}
    settings = {ours: fields[theirs] for theirs, ours in names.items() if theirs in fields}
    endpoint = fields.get("BlobEndpoint")
    if "account_name" not in settings and not endpoint:
        raise Misconfigured("AZURE_STORAGE_CONNECTION_STRING names no account", hint="copy it again from the portal")
    suffix = fields.get("EndpointSuffix")
    if endpoint is None and suffix and suffix != "core.windows.net":
        scheme = fields.get("DefaultEndpointsProtocol", "https")
        endpoint = f"{scheme}://{settings['account_name']}.blob.{suffix}"
    return Login(settings=settings, endpoint=endpoint)
