"""`GET /explain/...` on the webhook's port: from a request to a status and a body.

    /explain/claim/NAMESPACE/NAME   /explain/pod/...   /explain/gang/...   /explain/node/NAME

It is reached through the API server's proxy of the Service (services/proxy), which takes the caller's
Authorization away; so the token comes in a header of its own (TOKEN_HEADER). Asked in this order, each before
the next costs anything: is this the leader, is the request well formed, are there not too many, whose token
is it, have they asked too often, may they, and what is the answer.

    who asks                         at most
    all together                     BUSY questions under way; REVIEWS a second (a burst of twice as many)
                                     are put to the API server, which come after allocations
    one user                         one question at a time, RATE a second (a burst of BURST)
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from koordra.api.tables import BoundedCache
from koordra.controller.explain.callers import Caller, authenticated, needed, require
from koordra.controller.explain.question import AUDIENCE, TOKEN_HEADER, Subject, question_in
from koordra.controller.explain.questions import Busy, Questions
from koordra.errors import ApiError, Forbidden, Invalid, KoordraError
from koordra.inert import inert
from koordra.kube.client import KubeClient
from koordra.logs import get_logger
from koordra.metrics import Metrics, counter

log = get_logger(__name__)

BUSY: Final = 16
REVIEWS: Final = 10.0
RATE: Final = 2.0
BURST: Final = 50.0
LONGEST_TOKEN: Final = 16 << 10
LARGEST: Final = 2 << 20
"""Bytes of an answer; who gets no more reads the cluster."""

ANSWERS: Final = counter(
    "koordra_explain_requests_total",
    "Questions of koordra explain that were answered, with the HTTP status; subject -: it could not be read",
    subject=(*(subject.value for subject in Subject), "-"),
    code=("200", "401", "403", "404", "413", "422", "429", "502", "503", "504"),
)


@dataclass(slots=True)
class Bucket:
    """A token bucket. `full` at first."""

    rate: float
    full: float
    left: float
    at: float

    @classmethod
    def of(cls, rate: float, full: float, now: float) -> Bucket:
        return cls(rate, full, full, now)

    def take(self, now: float) -> bool:
        self.left = min(self.full, self.left + (now - self.at) * self.rate)
        self.at = now
        if self.left < 1:
            return False
        self.left -= 1
        return True


class ExplainEndpoint:
    """Thread-safe. `clock` is monotonic."""

    def __init__(
        self,
        client: KubeClient,
        questions: Questions,
        *,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._questions = questions
        self._clock = clock
        self._lock = threading.Lock()
        self._under_way = 0
        self._reviews = Bucket.of(REVIEWS, 2 * REVIEWS, clock())
        self._of_user = BoundedCache[str, Bucket](1024)
        self._asking: set[str] = set()
        self._answers = metrics.counter(ANSWERS)

    def get(self, path: str, header: Callable[[str], str | None]) -> tuple[int, bytes]:
        """(HTTP status, body) of one GET. `header`: a header's value by its name."""
        subject = "-"
        try:
            if not self._questions.is_leading:
                raise self._questions.not_leading()
            question = question_in(path)
            subject = str(question.subject)
            with self._one_of_all():
                caller = authenticated(self._client, *_token(header))
                with self._one_of(caller):
                    require(self._client, caller, needed(question))
                    found = self._questions.ask(question)
            body = json.dumps(found, separators=(",", ":")).encode()
            if len(body) > LARGEST:
                raise Invalid(f"the answer has {len(body)} bytes", code=413, reason="RequestEntityTooLarge")
            code = 200
        except ApiError as error:
            code = error.code or 502
            body = _status(code, error.message, error.reason)
        except KoordraError as error:
            code, body = 422, _status(422, str(error), "Invalid")
        self._answers.labels(subject, str(code)).inc()
        return code, body

    @contextmanager
    def _one_of_all(self) -> Iterator[None]:
        with self._lock:
            if self._under_way >= BUSY or not self._reviews.take(self._clock()):
                raise _busy("too many questions at once")
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1

    @contextmanager
    def _one_of(self, caller: Caller) -> Iterator[None]:
        now = self._clock()
        with self._lock:
            bucket = self._of_user.get(caller.name)
            if bucket is None:
                bucket = self._of_user[caller.name] = Bucket.of(RATE, BURST, now)
            if caller.name in self._asking:
                raise _busy(f"{caller.name} asks something already")
            if not bucket.take(now):
                raise _busy(f"{caller.name} has asked {BURST:g} questions, and may ask {RATE:g} a second")
            self._asking.add(caller.name)
        try:
            yield
        finally:
            with self._lock:
                self._asking.discard(caller.name)


def _token(header: Callable[[str], str | None]) -> tuple[str, str]:
    """The token, and the audience that it is for; empty for the API server's own."""
    scheme, _, token = (header(TOKEN_HEADER) or "").partition(" ")
    audience = {"bearer": "", "explain": AUDIENCE}.get(scheme.lower())
    if audience is None or not token.strip() or len(token) > LONGEST_TOKEN:
        raise Forbidden(f"no token in {TOKEN_HEADER}", code=401, reason="Unauthorized")
    return token.strip(), audience


def _busy(text: str) -> Busy:
    return Busy(text, code=429, reason="TooManyRequests")


def _status(code: int, message: str, reason: str) -> bytes:
    """As the API server words its refusals."""
    document = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": inert(message),
        "reason": reason,
        "code": code,
    }
    return json.dumps(document).encode()
