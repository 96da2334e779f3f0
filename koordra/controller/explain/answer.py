"""From a question to the document that answers it."""

from __future__ import annotations

from koordra.api.objects import Object
from koordra.controller.explain.claims import claim_entry
from koordra.controller.explain.gangs import gang_document
from koordra.controller.explain.nodes import node_document
from koordra.controller.explain.pods import pod_document
from koordra.controller.explain.question import Question, Subject, not_there
from koordra.controller.explain.view import ClusterView
from koordra.errors import NotFound


def answer(view: ClusterView, question: Question) -> Object:
    """The answer's document, by the word for its kind. Raises NotFound."""
    match question.subject:
        case Subject.CLAIM:
            return {"claim": claim_entry(view, _found(view.cache.claims.get(question.key), question))}
        case Subject.POD:
            return {"pod": pod_document(view, _found(view.cache.pods.get(question.key), question))}
        case Subject.NODE:
            return {"node": node_document(view, _found(view.cache.nodes.get(question.key), question))}
        case Subject.GANG:
            gang = view.gangs.get(question.key)
            if gang is None:
                raise _not_found(question)
            return {"gang": gang_document(view, gang)}


def _found(obj: Object | None, question: Question) -> Object:
    if obj is None:
        raise _not_found(question)
    return obj


def _not_found(question: Question) -> NotFound:
    return NotFound(not_there(question), code=404, reason="NotFound")
