"""As much of pymongo as the worked example of a store uses; documents are in memory."""

from __future__ import annotations

import copy
import json
from types import ModuleType
from typing import Any

Document = dict[str, Any]
OPERATORS = {"$lt": lambda found, other: found < other, "$in": lambda found, other: found in other}


class PyMongoError(Exception):
    pass


class Collection:
    def __init__(self) -> None:
        self.rows: dict[str, Document] = {}
        self.silent = False

    def _ask(self) -> None:
        if self.silent:
            raise PyMongoError("no server answers")

    def replace_one(self, wanted: Document, document: Document, *, upsert: bool) -> None:
        self._ask()
        assert upsert
        assert wanted == {"_id": document["_id"]}
        _check_names(document)
        self.rows[document["_id"]] = json.loads(json.dumps(document))

    def find(self, wanted: Document, _fields: Document | None = None) -> list[Document]:
        self._ask()
        return [copy.deepcopy(row) for row in self.rows.values() if _matches(row, wanted)]

    def delete_many(self, wanted: Document) -> None:
        self._ask()
        self.rows = {key: row for key, row in self.rows.items() if not _matches(row, wanted)}


def _check_names(value: Any) -> None:
    """MongoDB's drivers and queries do not get at names with dots or dollars."""
    if isinstance(value, dict):
        assert not [name for name in value if "." in name or name.startswith("$")]
        for one in value.values():
            _check_names(one)


def _matches(row: Document, wanted: Document) -> bool:
    for path, value in wanted.items():
        found: Any = row
        for part in path.split("."):
            found = found[part]
        if isinstance(value, dict):
            ((operator, other),) = value.items()
            if not OPERATORS[operator](found, other):
                return False
        elif found != value:
            return False
    return True


class MongoClient:
    def __init__(self, url: str) -> None:
        assert url.startswith("mongodb://")
        self.collections: dict[str, Collection] = {}

    def get_default_database(self, name: str) -> dict[str, Collection]:
        del name
        return {"pod_profiles": Collection()}


def modules() -> dict[str, ModuleType]:
    pymongo, errors = ModuleType("pymongo"), ModuleType("pymongo.errors")
    pymongo.MongoClient, errors.PyMongoError = MongoClient, PyMongoError  # type: ignore[attr-defined]
    return {"pymongo": pymongo, "pymongo.errors": errors}
