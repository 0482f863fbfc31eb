"""The pages: what is asked for becomes HTML. Nothing is changed, and nothing runs in the browser."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from stoker.board.hosts import is_known, name_of
from stoker.board.looks import Look, Looks
from stoker.board.sources import OutsideError, RunFolder, adapters_in, check, read_report
from stoker.contract.evaluation import EVALUATION
from stoker.contract.metrics import METRICS, SAMPLES
from stoker.contract.words import report_traceback
from stoker.report.page import facts_list, run_parts, style
from stoker.report.runs import read_run
from stoker.report.text import shown
from stoker.runs.run import Run
from stoker.runs.words import duration, facts_of, left, number, percent, pods_of

# More rows than this are nobody's to read; how many curves are kept.
_ROWS, _KEPT = 200, 4
_EVERY = ("10", "30", "60")
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_UNKNOWN = (
    "This page does not answer under the name {name!r}. Use another one, or allow this one: "
    "start it with --allow-host NAME, or add the name to `hosts` in the values of the chart stoker-board.\n"
)
# A run wrote its report, so anybody may have: it is shown without scripts, and as of another origin.
_REPORT_HEADERS = _HEADERS | {
    "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "frame-ancestors 'none'"
}


def application(looks: Looks, hosts: Sequence[str], root: str = "") -> ASGIApp:
    """Return the application.

    Args:
        looks: what it shows.
        hosts: names under which it answers; `*.DOMAIN` for all below a domain, `*` for any.
        root: path behind a proxy, without a slash at its end; the proxy may strip it or not.
    """
    pages = _Pages(looks)
    app = Starlette(
        routes=[
            Route("/", pages.runs, name="runs"),
            Route("/runs/{namespace}/{name}", pages.run, name="run"),
            Route("/results", pages.result, name="result"),
            Route("/report", pages.report, name="report"),
            Route("/serving", pages.serving, name="serving"),
            Route("/board.css", _style, name="style"),
            Route("/healthz", _healthy),
        ],
        exception_handlers={HTTPException: pages.refused, Exception: pages.broken},
    )

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        # Another site's page could ask this one under a name of its own that leads here.
        name = name_of(Headers(scope=scope).get("host", ""))
        if not is_known(name, hosts):
            await PlainTextResponse(_UNKNOWN.format(name=name[:253]), 400, _HEADERS)(scope, receive, send)
            return
        # uvicorn would put the root in front of a path that has it already: then each page would be unknown.
        await app({**scope, "root_path": root}, receive, send)

    return answer


class _Pages:
    def __init__(self, looks: Looks) -> None:
        self._looks = looks
        self._templates = Environment(
            loader=PackageLoader(__name__.rpartition(".")[0]),
            undefined=StrictUndefined,
            autoescape=True,
            finalize=_shown,
        )
        self._templates.globals |= {"number": number, "duration": duration, "left": left, "percent": percent}
        self._drawn = lru_cache(maxsize=_KEPT)(_parts)
        # Files may be large: however many look, one is read at a time.
        self._drawing = threading.Lock()

    def runs(self, request: Request) -> Response:
        look = self._looks.newest()
        known = {id(found) for run in look.runs if (found := look.left_of(run))}
        others = [found for found in look.left if id(found) not in known]
        return self._page(request, "runs.html", look, rows=[_row(look, run) for run in look.runs], others=others)

    def run(self, request: Request) -> Response:
        look, asked = self._looks.newest(), request.path_params
        run = look.run(asked["namespace"], asked["name"])
        if run is None:
            told = f"Namespace {asked['namespace']} has no run {asked['name']}: choose another one."
            return self._refuse(request, 404, told)
        found = look.left_of(run)
        return self._page(
            request,
            "run.html",
            look,
            title=run.name,
            run=run,
            facts=facts_of(run, look.time),
            pods=pods_of(run),
            causes=look.causes(run),
            told=Markup(facts_list(found.facts) if found else ""),
            left_behind=found,
            **self._curves(found),
        )

    def result(self, request: Request) -> Response:
        look = self._looks.newest()
        found = _asked(look, request)
        if found is None:
            return self._refuse(request, 404, "The claims have no such run: choose another one.")
        return self._page(
            request,
            "result.html",
            look,
            title=found.run,
            told=Markup(facts_list(found.facts)),
            left_behind=found,
            **self._curves(found),
        )

    def report(self, request: Request) -> Response:
        found = _asked(self._looks.newest(), request)
        try:
            if found is None:
                raise FileNotFoundError
            return Response(read_report(found), headers=_REPORT_HEADERS, media_type="text/html; charset=utf-8")
        except OutsideError as error:
            return self._refuse(request, 404, f"{error}.")
        except OSError:
            return self._refuse(request, 404, "There is no such report: a run writes it at its end.")

    def serving(self, request: Request) -> Response:
        look = self._looks.newest()
        claims = {(source.namespace, source.name): source for source in self._looks.sources}
        rows = []
        for release in look.releases:
            source = claims.get((release.namespace, release.claim))
            rows.append((release, None if source is None else adapters_in(source, release.folder)))
        return self._page(request, "serving.html", look, title="Serving", rows=rows)

    def refused(self, request: Request, error: Exception) -> Response:
        """Answer what Starlette itself refuses: an unknown address, another method."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        known = {404: "There is no such page: choose one above.", 405: "This page is read-only: open it with GET."}
        return self._refuse(request, status, known.get(status, "This cannot be answered: choose a page above."))

    def broken(self, request: Request, error: Exception) -> Response:
        """Answer when a page cannot be made."""
        report_traceback()
        told = f"This page cannot be made ({type(error).__name__}): the board's log says more."
        return self._refuse(request, 500, told)

    def _refuse(self, request: Request, status: int, told: str) -> Response:
        look = Look(datetime.now(UTC))
        return self._page(request, "refused.html", look, status, title="Not shown", told=told)

    def _page(self, request: Request, template: str, look: Look, status: int = 200, **values: Any) -> Response:
        root = str(request.scope.get("root_path") or "").rstrip("/")
        every = request.query_params.get("every")
        every = every if every in _EVERY and request.method in ("GET", "HEAD") else None
        text = self._templates.get_template(template).render(
            look=look,
            root=root,
            here=template.removesuffix(".html"),
            every=every,
            choices=_EVERY,
            asked=[(name, value) for name, value in request.query_params.multi_items() if name != "every"],
            namespaces=self._looks.namespaces,
            several=len(self._looks.namespaces) > 1,
            most=_ROWS,
            address=lambda path, **told: _address(root, path, told),
            **({"title": "Runs"} | values),
        )
        headers = _HEADERS | ({"Refresh": every} if every else {})
        return HTMLResponse(text, status, headers)

    def _curves(self, found: RunFolder | None) -> dict[str, Any]:
        """Return the curves of a run, or why there are none."""
        if found is None or not found.drawn:
            return {"parts": (), "no_curves": ""}
        try:
            check(found)
            state = [_stamp(found.folder / name) for name in (METRICS, SAMPLES, EVALUATION)]
            with self._drawing:
                parts = self._drawn(_Key(found, (*state, found.changed)))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            return {"parts": (), "no_curves": f"Its curves cannot be read: {why}."}
        broken = f"{METRICS} of {found.source.name} has no number that could be drawn."
        return {"parts": parts, "no_curves": "" if parts else broken}


class _Key:
    """What decides how the curves of a folder look."""

    def __init__(self, left: RunFolder, state: tuple[object, ...]) -> None:
        self.left, self._told = left, (left.folder, state)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._told == other._told

    def __hash__(self) -> int:
        return hash(self._told)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return what changes when a file does; None if there is none."""
    try:
        told = path.stat()
    except FileNotFoundError:
        return None
    return told.st_mtime_ns, told.st_size


def _parts(key: _Key) -> tuple[Markup, ...]:
    run = read_run(key.left.folder, key.left.facts)
    return () if run is None else tuple(Markup(part) for part in run_parts(run))


def _row(look: Look, run: Run) -> dict[str, Any]:
    """Return the numbers of a run: what it reports, else what it has left."""
    found = look.left_of(run)
    metric: Callable[[str], float | None] = (found.last if found else {}).get
    if run.progress and run.progress.metrics:
        metric = run.progress.metric
    return {"run": run, **{name: metric(name) for name in ("step", "loss", "reward")}}


def _asked(look: Look, request: Request) -> RunFolder | None:
    """Return what is asked for, of what was found: an address leads nowhere else."""
    names = (request.query_params.get("claim"), request.query_params.get("folder", ""))
    return next((left for left in look.left if (left.source.name, left.path) == names), None)


def _address(root: str, path: str, told: Mapping[str, str]) -> Markup:
    # `Markup.escape` knows nothing of secrets: an address that is changed leads nowhere.
    return Markup.escape(root + quote(path) + (f"?{urlencode(told)}" if told else ""))


def _shown(value: Any) -> Any:
    """Return a value for a page: escaped, without secrets, unless it is HTML already."""
    return value if isinstance(value, Markup) else Markup(shown("" if value is None else value, 2000))


def _style(request: Request) -> Response:
    own = resources.files(__package__).joinpath("board.css").read_text(encoding="utf-8")
    return Response(style() + own, headers=_HEADERS, media_type="text/css")


def _healthy(request: Request) -> Response:
    return PlainTextResponse("ok\n")
