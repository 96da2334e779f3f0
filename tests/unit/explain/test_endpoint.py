"""Who may ask the controller, how often, and what it costs it."""

from __future__ import annotations

import contextlib
import json
import threading
from functools import partial
from typing import Any

import pytest

from koordra.api.kinds import SERVICE_ACCOUNTS, SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, Kind
from koordra.api.objects import Object
from koordra.cli.cluster.controller_answers import TRIES, Controller
from koordra.controller.explain import questions as module
from koordra.controller.explain.endpoint import (
    BURST,
    RATE,
    REVIEWS,
    ExplainEndpoint,
)
from koordra.controller.explain.question import TOKEN_HEADER, Question, Subject, path_of, question_in
from koordra.controller.explain.questions import SHARE, WITHIN, NotLeading, Questions
from koordra.errors import ApiError, ApiUnreachable, Forbidden, NotFound
from koordra.kube.wire import decode_status, status_error
from koordra.metrics import Metrics
from tests.fakes.clock import Clock
from tests.fakes.metric_samples import sample

SMALL = Question(Subject.CLAIM, "team", "small")


class Server:
    """The API server's reviews: tokens are `token-of-NAME`, for the controller alone `own-token-of-NAME`;
    `allowed` are (verb, resource, namespace, name). `knows_audiences`: servers did not before 1.13."""

    def __init__(self) -> None:
        self.allowed: set[tuple[str, str, str, str]] = set()
        self.asked: list[Object] = []
        self.knows_audiences = True

    def create(self, kind: Kind, body: Object) -> Object:
        self.asked.append(body)
        spec = body["spec"]
        if kind is TOKEN_REVIEWS:
            audiences = spec.get("audiences", [])
            scheme, _, name = spec["token"].partition("token-of-")
            known = bool(name) and scheme == ("own-" if audiences == ["koordra-explain"] else "")
            user = {"username": name, "groups": ["g"], "uid": "7", "extra": {"k": ["v"]}}
            status: Object = {"authenticated": True, "user": user} if known else {"user": {}}
            if known and audiences and self.knows_audiences:
                status["audiences"] = audiences
            return {"status": status}
        assert kind is SUBJECT_ACCESS_REVIEWS
        assert (spec["groups"], spec["uid"], spec["extra"]) == (["g"], "7", {"k": ["v"]})
        one = spec["resourceAttributes"]
        access = (one["verb"], one["resource"], one.get("namespace", ""), one.get("name", ""))
        return {"status": {"allowed": access in self.allowed}}


class Asked:
    """An endpoint whose worker answers at once, with the question's own words."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.server, self.metrics = Clock(), Server(), Metrics()
        self.questions = Questions(leader=lambda: "ctl-a", clock=self.clock.monotonic)
        self.endpoint = ExplainEndpoint(
            self.server,  # type: ignore[arg-type]
            self.questions,
            metrics=self.metrics,
            clock=self.clock.monotonic,
        )
        self.answers: dict[str, Any] = {"claim": {"name": "small"}}
        monkeypatch.setattr(module, "answer", lambda _view, question: self.answer(question))
        self.questions.open(lambda: self.questions.answer(lambda: None))  # type: ignore[arg-type,return-value]
        self.server.allowed = {("get", "resourceclaims", "team", "small")}

    def answer(self, question: Question) -> Object:
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers

    def get(self, path: str = path_of(SMALL), token: str | None = "Bearer token-of-anna") -> tuple[int, Any]:
        header = {TOKEN_HEADER: token}
        code, body = self.endpoint.get(path, header.get)
        return code, json.loads(body)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def test_who_may_read_the_claim_is_answered(asked: Asked) -> None:
    assert asked.get() == (200, {"claim": {"name": "small"}})
    assert sample(asked.metrics, "koordra_explain_requests_total", {"subject": "claim", "code": "200"}) == 1


@pytest.mark.parametrize(
    "token", [None, "", "Bearer", "Bearer ", "Basic token-of-anna", "Bearer x", "Bearer " + "x" * 99_999]
)
def test_who_has_no_token_that_the_server_knows_is_not(asked: Asked, token: str | None) -> None:
    code, status = asked.get(token=token)
    assert (code, status["kind"], status["reason"]) == (401, "Status", "Unauthorized")
    assert len(asked.server.asked) == (token == "Bearer x"), "what is no token costs the server nothing"


def test_a_token_for_the_controller_alone_is_reviewed_as_such(asked: Asked) -> None:
    assert asked.get(token="Explain own-token-of-anna")[0] == 200
    for token in ("Bearer own-token-of-anna", "Explain token-of-anna"):
        assert asked.get(token=token)[0] == 401, "each is taken for what it is alone"
    asked.server.knows_audiences = False
    assert asked.get(token="Explain own-token-of-anna")[0] == 401, "nobody has judged whom it is for"


@pytest.mark.parametrize(
    ("path", "needed"),
    [
        ("/explain/claim/team/small", [("get", "resourceclaims", "team", "small")]),
        ("/explain/pod/team/p", [("get", "pods", "team", "p"), ("get", "resourceclaims", "team", "")]),
        ("/explain/gang/team/g", [("list", "pods", "team", ""), ("list", "resourceclaims", "team", "")]),
        (
            "/explain/node/n0",
            [("get", "nodes", "", "n0"), ("list", "pods", "", ""), ("list", "resourceclaims", "", "")],
        ),
    ],
)
def test_every_right_is_needed(asked: Asked, path: str, needed: list[tuple[str, str, str, str]]) -> None:
    asked.answers = {"x": 1}
    asked.server.allowed = set(needed)
    assert asked.get(path)[0] == 200
    for one in needed:
        asked.server.allowed = set(needed) - {one}
        code, status = asked.get(path)
        assert (code, status["reason"]) == (403, "NotAllowed")
        assert f"anna may not {one[0]} {one[1]}" in status["message"]


@pytest.mark.parametrize(
    "path",
    [
        "/explain/",
        "/explain/claim",
        "/explain/claim/team",
        "/explain/claim//small",
        "/explain/node/",
        "/explain/node/a/b",
        "/explain/secret/team/x",
        "/explain/claim/a/b/c",
    ],
)
def test_other_paths_are_none(asked: Asked, path: str) -> None:
    assert asked.get(path)[0] == 404
    assert not asked.server.asked


def test_names_travel_quoted() -> None:
    for question in (Question(Subject.POD, "a/b", "c d%2F"), Question(Subject.NODE, "", "ü?#"), SMALL):
        assert question_in(path_of(question)) == question


def test_a_standby_says_who_leads_and_asks_nobody(asked: Asked) -> None:
    asked.questions.close()
    code, status = asked.get()
    assert (code, status["reason"]) == (503, "NotLeading")
    assert status["message"] == "this replica does not lead; ctl-a does"
    assert not asked.server.asked


def test_what_is_not_there_and_what_fails_have_their_words(asked: Asked) -> None:
    asked.answers = NotFound("claim team/small is not there", code=404, reason="NotFound")  # type: ignore[assignment]
    assert asked.get()[0] == 404
    asked.answers = ApiUnreachable("no answer")  # type: ignore[assignment]
    assert asked.get()[0] == 502
    asked.answers = {"claim": "x" * (3 << 20)}
    assert asked.get()[0] == 413


def test_a_user_asks_one_question_at_a_time_and_so_many_a_second(asked: Asked) -> None:
    inside: list[int] = []
    answer = asked.answer

    def asks_again(question: Question) -> Object:
        asked.answer = answer  # type: ignore[method-assign]
        inside.append(asked.get()[0])
        inside.append(asked.get(token="Bearer token-of-bert")[0])
        return answer(question)

    def seconds(number: float) -> None:
        asked.clock.now += number

    asked.answer = asks_again  # type: ignore[method-assign]
    assert asked.get()[0] == 200
    assert inside[0] == 429, "the same user"
    for _ in range(int(BURST) - 1):
        seconds(0.1)
        assert asked.get()[0] in (200, 429)
    codes = []
    for _ in range(40):
        seconds(1 / REVIEWS)
        codes.append(asked.get()[0])
    assert 429 in codes
    assert codes[-20:].count(200) <= 20 * RATE / REVIEWS + 1
    assert asked.get(token="Bearer token-of-bert")[0] == 200, "another user"


def test_junk_costs_the_api_server_so_many_reviews_a_second(asked: Asked) -> None:
    for number in range(1000):
        asked.get(token=f"Bearer junk-{number}")
    assert len(asked.server.asked) == 2 * REVIEWS
    asked.clock.now += 1.0
    for number in range(1000):
        asked.get(token=f"Bearer junk-{number}")
    assert len(asked.server.asked) == 3 * REVIEWS


# the worker


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    def answer(view: Any, question: Question) -> Object:
        found.append(question.name)
        view(question)
        return {"name": question.name}

    monkeypatch.setattr(module, "answer", answer)
    return found


def waiting(questions: Questions, *names: str) -> list[threading.Thread]:
    """Each asked in a thread of its own, in order."""
    threads = []
    for name in names:
        before = len(questions._queue)
        thread = threading.Thread(target=_ask, args=(questions, name), daemon=True)
        thread.start()
        while len(questions._queue) == before:
            thread.join(0.001)
        threads.append(thread)
    return threads


def _ask(questions: Questions, name: str) -> None:
    with contextlib.suppress(ApiError):
        questions.ask(Question(Subject.CLAIM, "team", name))


def test_answers_get_a_tenth_of_the_workers_time(answered: list[str]) -> None:
    clock = Clock()
    questions = Questions(clock=clock.monotonic)
    questions.open(lambda: None)
    threads = waiting(questions, "a", "b", "c")

    def view() -> Any:
        return lambda _question: _forward(clock, 0.25)

    rest = questions.answer(view)
    assert answered == ["a"]
    assert rest == pytest.approx(SHARE * 0.25)
    assert questions.answer(view) == pytest.approx(SHARE * 0.25)
    assert answered == ["a"], "passes come first"
    _forward(clock, SHARE * 0.25)
    questions.answer(view)
    assert answered == ["a", "b"]
    _forward(clock, WITHIN + 1)
    assert questions.answer(view) is None
    assert answered == ["a", "b"], "nobody waits for c any more"
    questions.close()
    for thread in threads:
        thread.join(0.1)


def _forward(clock: Clock, seconds: float) -> None:
    clock.now += seconds


def test_a_defect_met_in_an_answer_is_the_callers(answered: list[str]) -> None:
    def fails(*_question: Question) -> Any:
        raise ZeroDivisionError("a defect")

    for view in (fails, lambda: fails):
        questions = Questions()
        questions.open(partial(questions.answer, view))
        with pytest.raises(ZeroDivisionError):
            questions.ask(SMALL)


def test_a_term_that_ends_sends_those_who_wait_elsewhere(answered: list[str]) -> None:
    questions = Questions(leader=lambda: "b")
    failed: list[Exception] = []

    def ask() -> None:
        try:
            questions.ask(SMALL)
        except NotLeading as error:
            failed.append(error)

    asked = threading.Event()
    questions.open(asked.set)
    thread = threading.Thread(target=ask)
    thread.start()
    asked.wait()
    questions.close()
    thread.join()
    assert [str(error) for error in failed] == ["this replica does not lead; b does (503 NotLeading)"]
    assert not answered


# the command


class Proxy:
    """The API server's proxy of the Service: one of the endpoints for each request, in turn. `issues`: what
    it says to a TokenRequest."""

    def __init__(
        self,
        *endpoints: ExplainEndpoint | ApiError,
        authorization: str = "Bearer token-of-anna",
        issues: str | ApiError = "",
    ) -> None:
        self.endpoints, self.authorization, self.issues = list(endpoints), authorization, issues
        self.requests: list[str] = []
        self.issued: list[Object] = []

    def create(self, kind: Kind, body: Object, *, namespace: str, name: str, subresource: str) -> Object:
        assert (kind, namespace, name, subresource) == (
            SERVICE_ACCOUNTS,
            "koordra-system",
            "koordra-explain",
            "token",
        )
        self.issued.append(body["spec"])
        if isinstance(self.issues, ApiError):
            raise self.issues
        return {"status": {"token": self.issues}}

    def read(self, path: str, *, headers: dict[str, str], within: float) -> Object:
        assert within > WITHIN
        self.requests.append(path)
        endpoint = self.endpoints.pop(0)
        self.endpoints.append(endpoint)
        if isinstance(endpoint, ApiError):
            raise endpoint
        code, body = endpoint.get(path.partition("/proxy")[2], headers.get)
        if code != 200:
            raise status_error(code, decode_status(body))
        found: Object = json.loads(body)
        return found


def test_the_leader_is_found_among_the_replicas(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    standby = Asked(monkeypatch)
    standby.questions.close()
    proxy = Proxy(standby.endpoint, standby.endpoint, asked.endpoint)
    controller = Controller(proxy)  # type: ignore[arg-type]
    assert controller.answer(SMALL) == {"name": "small"}
    assert len(proxy.requests) == 3
    assert proxy.requests[0] == (
        "/api/v1/namespaces/koordra-system/services/https%3Akoordra-webhook%3Awebhook/proxy/explain/claim/team/small"
    )


def test_where_nobody_answers_that_is_said_once(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    asked.questions.close()
    for proxy, word, requests in (
        (Proxy(asked.endpoint), "this replica does not lead; ctl-a does", TRIES),
        (Proxy(NotFound('services "koordra-webhook" not found', code=404)), "not found", 1),
        (
            Proxy(asked.endpoint, authorization="", issues=Forbidden("no", code=403)),
            "have the Role koordra-explain-all bound to you, or use a kubeconfig with a token",
            0,
        ),
        (
            Proxy(asked.endpoint, authorization="", issues=NotFound("no", code=404)),
            "apply deploy/kustomize/webhook of this version",
            0,
        ),
        (Proxy(asked.endpoint, authorization="", issues=ApiUnreachable("gone")), "gone", 0),
    ):
        controller = Controller(proxy)  # type: ignore[arg-type]
        assert controller.answer(SMALL) is None
        assert controller.answer(SMALL) is None
        said = capsys.readouterr().err
        assert said.count("the cluster is read instead") == 1
        assert word in said
        assert len(proxy.requests) == requests


def test_who_has_no_token_asks_for_one_that_is_for_the_controller_alone(asked: Asked) -> None:
    proxy = Proxy(asked.endpoint, authorization="", issues="own-token-of-anna")
    controller = Controller(proxy)  # type: ignore[arg-type]
    assert controller.answer(SMALL) == controller.answer(SMALL) == {"name": "small"}
    assert proxy.issued == [{"audiences": ["koordra-explain"], "expirationSeconds": 600}], (
        "once for all questions"
    )


def test_what_the_controller_refuses_is_not_looked_up_elsewhere(asked: Asked) -> None:
    asked.server.allowed.clear()
    with pytest.raises(Forbidden, match="anna may not get resourceclaims in namespace team"):
        Controller(Proxy(asked.endpoint)).answer(SMALL)  # type: ignore[arg-type]
    asked.server.allowed = {("get", "resourceclaims", "team", "small")}
    asked.answers = NotFound("claim team/small is not there", code=404, reason="NotFound")  # type: ignore[assignment]
    with pytest.raises(NotFound):
        Controller(Proxy(asked.endpoint)).answer(SMALL)  # type: ignore[arg-type]
