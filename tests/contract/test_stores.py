"""Every backend keeps the same promises, over real HTTP, under a prefix with odd characters."""

from __future__ import annotations

import pytest

from swamp.testing.contract import StoreContract, Traits

TRAITS = {
    "memory": Traits(),
    "directory": Traits(),
    "moto": Traits(),
    "ministack": Traits(),
    "s3-double": Traits(),
    "azurite": Traits(),
    "gcs": Traits(),
    # Its objects are files of the server's disk, and it accepts conditions without enforcing them.
    "rclone": Traits(enforces_conditions=False, nested_keys=False, long_names=False, stable_multipart_token=False),
    # It serves one request at a time, turns others away, and knows no pages.
    "gcs-emulator": Traits(enforces_conditions=False, at_once=1, many=60),
}


def _suite(name: str, traits: Traits) -> type[StoreContract]:
    @pytest.fixture
    def store(self, servers, fresh_prefix):
        return servers[name].open(f"{fresh_prefix()}/ö +%23")

    title = "Test" + name.title().replace("-", "")
    return type(title, (StoreContract,), {"store": store, "traits": traits, "__doc__": f"{name} keeps the contract."})


for _name, _traits in TRAITS.items():
    _class = _suite(_name, _traits)
    globals()[_class.__name__] = _class
del _class
