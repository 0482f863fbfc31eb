"""The HTTP endpoints of the watch: readiness, adapters and metrics of one replica, and a look on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable

from stoker.serve.adapters.state import ReplicaState
from stoker.serve.web import Handler, WebServer

# Names of versions that one request may bring, its bytes, and requests that may wait for a look at the same time.
_NAMES = 64
_BYTES = 16 * 2**10
_WAITING = 32


class Endpoints(WebServer):
    """A web server that shows the newest state, on IPv6 and IPv4 alike where the machine has both.

    Args:
        listen: host and port.
        state: returns the newest state.
        look: looks at once, told names of versions and a generation of the fleet's state that should be there, and
            returns the state after that.
        sees: returns whether there is a folder for the versions of a name.

    Raises:
        OSError: it cannot listen there.
    """

    def __init__(
        self,
        listen: tuple[str, int],
        state: Callable[[], ReplicaState],
        look: Callable[[Iterable[str], int], ReplicaState],
        sees: Callable[[str], bool],
    ) -> None:
        super().__init__(listen, _handler(state, look, sees))


def _handler(
    newest: Callable[[], ReplicaState], look: Callable[[Iterable[str], int], ReplicaState], sees: Callable[[str], bool]
) -> type[Handler]:
    places = threading.BoundedSemaphore(_WAITING)

    class StateHandler(Handler):
        """Answers probes, Prometheus, people, and trainers that publish."""

        def get(self) -> None:
            state = newest()
            answers = {
                "/healthz": (200, "text/plain", "ok\n"),
                "/readyz": (200 if state.ready else 503, "application/json", state.to_json()),
                "/adapters": (200, "application/json", state.to_json()),
                "/metrics": (200, "text/plain; version=0.0.4", state.metrics()),
            }
            self.answer(*answers.get(self.path, (404, "text/plain", "no such path\n")))

        def post(self) -> None:
            if self.path != "/look":
                self.answer(404, "text/plain", "no such path\n")
                return
            length = self.headers.get("Content-Length", "0")
            if "Transfer-Encoding" in self.headers or not length.isdecimal() or int(length) > _BYTES:
                self.answer(413, "text/plain", f"send at most {_BYTES} bytes, with Content-Length\n")
                return
            try:
                told, folder, generation = _asked(self.rfile.read(int(length)))
            except ValueError as error:
                self.answer(400, "text/plain", f"{error}\n")
                return
            if not places.acquire(blocking=False):
                self.answer(503, "text/plain", "too many wait for a look: try again\n")
                return
            try:
                state = look(told, generation)
            finally:
                places.release()
            self.answer(200, "application/json", state.to_json(None if folder is None else sees(folder)))

    return StateHandler


def _asked(body: bytes) -> tuple[list[str], str | None, int]:
    """Return what the body of a request brings: names of versions, the name whose folder it asks for, a generation.

    Raises:
        ValueError: it has another form.
    """
    wrong = (
        f'send nothing, or {{"published": ["NAME:VERSION"], "folder": "NAME", "generation": NUMBER}} with at most '
        f"{_NAMES} names"
    )
    try:
        data = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise ValueError(wrong) from error
    names = data.get("published", []) if isinstance(data, dict) else None
    if not isinstance(names, list) or len(names) > _NAMES or not all(isinstance(name, str) for name in names):
        raise ValueError(wrong)
    folder, generation = data.get("folder"), data.get("generation", 0)
    if not isinstance(folder, str | None) or type(generation) is not int:
        raise ValueError(wrong)
    return names, folder, generation
