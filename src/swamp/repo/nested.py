"""A store inside another store's prefix is refused: one would take the other's objects for its own. So is somebody
else's namespace, opened by its address (L69)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from swamp.errors import UsageError
from swamp.index.root import ROOT_KEY

if TYPE_CHECKING:
    from swamp.repo.datastore import Datastore


def refuse_nested_store(datastore: Datastore) -> None:
    """Raises UsageError when a directory above the prefix is a store of its own. A namespace is no such nesting."""
    from swamp.commit.namespace import refuse_anothers_namespace, refuse_nested
    from swamp.store.open import TYPES, open_store, parse_target

    config = datastore.config
    if config.namespace is None:
        refuse_anothers_namespace(datastore.store, datastore.context.repo_id)
    if config.url is None and config.type not in TYPES:
        return  # a plug-in knows its own addresses
    target = parse_target(config.url or config.type, config.config)
    if target.kind == "file":
        _refuse_directory(Path(target.bucket))
    if target.prefix:
        config_of_bucket = {key: value for key, value in target.config.items() if key != "prefix"}
        bucket = open_store(f"{_SCHEMES[target.kind]}://{target.bucket}", config_of_bucket, datastore.context.env)
        refuse_nested(bucket, target.prefix)


_SCHEMES: Final = {"s3": "s3", "gcs": "gs", "azure": "az", "file": "file", "memory": "memory"}


def _refuse_directory(directory: Path) -> None:
    for above in directory.absolute().parents:
        if (above / ROOT_KEY).is_file():
            raise UsageError(
                f"{directory} lies inside another datastore: {above}",
                hint="choose a directory outside of it, or use a namespace of that datastore",
                details={"inside": str(above)},
            )
