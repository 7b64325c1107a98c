"""The page: files that were built from ``web/``, served as they are."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from ._guard import Problem

BUILT = Path(__file__).parent.parent / "web"


def page_routes() -> list[BaseRoute]:
    index = BUILT / "index.html"

    async def page(request: Request) -> Response:
        if not index.is_file():
            return Problem(
                404, "NoPage", "the page was not built; run 'npm ci && npm run build' in web/"
            ).response()
        return FileResponse(index, headers={"cache-control": "no-cache"})

    routes: list[BaseRoute] = [Route("/", page, methods=["GET"])]
    if (BUILT / "assets").is_dir():
        routes.append(Mount("/assets", StaticFiles(directory=BUILT / "assets")))
    return routes
