"""Puts the pages and their files into the application."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import FastAPI
from starlette.responses import FileResponse, Response

from swamp.errors import NotFound
from swamp.serve.pages import browse, follow, inspect, overview

STATIC: Final = Path(__file__).parent / "static"
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def add_pages(app: FastAPI) -> None:
    for module in (overview, browse, follow, inspect):
        app.include_router(module.router)

    @app.get("/static/{name}", include_in_schema=False)
    def static(name: str) -> Response:
        """The style, the script and the icon: files of this package and nothing else."""
        file = STATIC / name
        if "/" in name or file.suffix not in _TYPES or not file.is_file():
            raise NotFound(f"there is no file {name} here")
        return FileResponse(file, media_type=_TYPES[file.suffix], headers={"Cache-Control": "no-cache"})

    @app.get("/favicon.ico", include_in_schema=False)
    def icon() -> Response:
        return FileResponse(STATIC / "swamp.svg", media_type="image/svg+xml")
