"""Signs the one request that a test needs and obstore does not have: creating an Azurite container."""

from __future__ import annotations

import base64
import hashlib
import hmac
from email.utils import format_datetime

from swamp.env import SYSTEM
from swamp.store.login import AZURITE_ACCOUNT, AZURITE_KEY

VERSION = "2021-08-06"


def signed_put(endpoint: str, container: str) -> dict[str, str]:
    """Headers of `PUT <endpoint>/<container>?restype=container` with Azurite's published key."""
    date = format_datetime(SYSTEM.clock.now(), usegmt=True)
    resource = f"/{AZURITE_ACCOUNT}/{AZURITE_ACCOUNT}/{container}\nrestype:container"
    text = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{VERSION}\n{resource}"
    digest = hmac.new(base64.b64decode(AZURITE_KEY), text.encode(), hashlib.sha256).digest()
    signature = base64.b64encode(digest).decode()
    return {
        "x-ms-date": date,
        "x-ms-version": VERSION,
        "Authorization": f"SharedKey {AZURITE_ACCOUNT}:{signature}",
    }
