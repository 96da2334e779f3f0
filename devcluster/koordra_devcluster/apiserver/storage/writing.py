"""How a change gets into the store: judged where policies and webhooks ask for it, and never half.

A change is a function from the current object to the new one. Without judges it runs inside the store's one
write lock. With them it is worked out, judged without the lock, and stored if nobody wrote in between; else
it is worked out again. A dry run throws the result away.
"""

from __future__ import annotations

from collections.abc import Callable

from koordra.api.objects import Object
from koordra_devcluster.apiserver.access.judging import AdmissionChain, Attempt
from koordra_devcluster.apiserver.fields.decoding import WriteOptions, decode
from koordra_devcluster.apiserver.resources import Served
from koordra_devcluster.apiserver.storage.store import Entry, Key, Store

Change = Callable[[Object | None], Object | None]


class Writing:
    """Writes to one store, past one chain of judges. Entries come back as they are stored."""

    def __init__(self, store: Store, chain: AdmissionChain) -> None:
        self._store, self._chain = store, chain

    def write(
        self,
        served: Served,
        key: Key,
        change: Change,
        options: WriteOptions,
        *,
        operation: str = "",
        subresource: str = "",
    ) -> Entry:
        """`operation`: what policies and webhooks are asked about; "" where they are not asked."""
        if operation and self._chain.concerns(served):
            return self._judged(served, key, change, options, operation=operation, subresource=subresource)
        if not options.dry_run:
            return self._store.mutate(served.stored, key, change)
        current = self._store.get(served.stored, key)
        result = change(current.object if current else None) or (current.object if current else {})
        return Entry(result)

    def _judged(
        self,
        served: Served,
        key: Key,
        change: Change,
        options: WriteOptions,
        *,
        operation: str,
        subresource: str,
    ) -> Entry:
        """The change is worked out, judged without holding the store, and stored if nobody wrote in between;
        else again."""
        while True:
            current = self._store.get(served.stored, key)
            old = current.object if current else None
            new = change(old)
            if new is not old or operation == "DELETE":
                attempt = Attempt(
                    served,
                    operation,
                    key[0],
                    key[1],
                    None if operation == "DELETE" else new or old,
                    None if operation == "CREATE" else old,
                    subresource,
                    options.user,
                    options.dry_run,
                )
                self._chain.judge(attempt, options.warnings)
            if options.dry_run:
                return Entry(new or old or {})
            try:
                entry = self._store.mutate(served.stored, key, _if_unchanged(old, new))
            except _ChangedMeanwhileError:
                continue
            return entry

    def mutated(self, served: Served, obj: Object, namespace: str, options: WriteOptions) -> Object:
        """The object as the mutating webhooks leave it."""
        if not self._chain.concerns(served):
            return obj
        name = obj["metadata"].get("name", "")
        attempt = Attempt(
            served, "CREATE", namespace, name, obj, None, user=options.user, dry_run=options.dry_run
        )
        changed = self._chain.mutate(attempt)
        return obj if changed is obj else decode(served, changed, options)


class _ChangedMeanwhileError(Exception):
    """Somebody else wrote the object while a change of it was judged."""


def _if_unchanged(old: Object | None, new: Object | None) -> Change:
    def change(now: Object | None) -> Object | None:
        if now is not old:
            raise _ChangedMeanwhileError
        return new

    return change
