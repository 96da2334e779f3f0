"""Errors that must be noticed, one by one: each has lived once, or would cost a tenant a device.

Those that are a table's number or a bound are found by where they stand; the others are a text and what
becomes of it. A text that is not there exactly once in its area is a LookupError: whoever changes the code
says here what the error looks like now.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final

from tests.mutants.areas import files
from tests.mutants.operators import Mutant, definitions

TEXTS: Final = (
    (
        "checkpoint",
        "Unprepare strikes the record off before the files are gone",
        (
            "            self._files.remove(ref.uid)\n"
            "            if record is not None:\n"
            "                journal.put(journal.checkpoint.without(ref.uid))\n"
        ),
        (
            "            if record is not None:\n"
            "                journal.put(journal.checkpoint.without(ref.uid))\n"
            "            self._files.remove(ref.uid)\n"
            "            if record is not None:\n"
        ),
    ),
    (
        "checkpoint",
        "Unprepare stops the isolation after the record is gone",
        (
            "                self._realisation.undo(journal, record)\n"
            "            self._files.remove(ref.uid)\n"
            "            if record is not None:\n"
            "                journal.put(journal.checkpoint.without(ref.uid))\n"
        ),
        (
            "                pass\n"
            "            self._files.remove(ref.uid)\n"
            "            if record is not None:\n"
            "                journal.put(journal.checkpoint.without(ref.uid))\n"
            "                self._realisation.undo(journal, record)\n"
        ),
    ),
    (
        "checkpoint",
        "Unprepare takes no lock",
        '        with self._alone(ref):\n            if not awaited():\n                raise PrepareError(f"{ref}: the kubelet gave this call up; nothing was unp',
        '        with suppress():\n            if not awaited():\n                raise PrepareError(f"{ref}: the kubelet gave this call up; nothing was unp',
    ),
    (
        "checkpoint",
        "Prepare takes no lock",
        "        with self._alone(ref, claim):\n            require_wanted(",
        "        with suppress():\n            require_wanted(",
    ),
    (
        "grants",
        "the annotation counts although nobody guards it",
        "rules.by_annotation or retained or _all(",
        "rules or retained or _all(",
    ),
    (
        "grants",
        "one class of several that says Immediate will do",
        "    return bool(entry.class_names) and all(\n",
        "    return bool(entry.class_names) and any(\n",
    ),
    (
        "grants",
        "a claim of a template may hold devices without its pod",
        "    if entry.made_for is not None or (",
        "    if (",
    ),
    (
        "grants",
        "a finalizer that nobody guards keeps devices",
        "claims_of.is_kept(entry.claim) and (retained or rules.by_annotation)",
        "claims_of.is_kept(entry.claim)",
    ),
    (
        "grants",
        "a Namespace's word that is no number lets it have the controller's number",
        '    return 0, f"{where}, {said!r}, which is no number,"\n',
        "    return rules.devices, where\n",
    ),
    (
        "grants",
        "what is granted is not counted",
        "            left -= number\n",
        "            pass\n",
    ),
    (
        "grants",
        "devices that a pod waits for are idle",
        "            and not self.pod_index.users.get(key)\n",
        "",
    ),
    (
        "grants",
        "devices that a pod has reserved are idle",
        "            and not entry.is_reserved\n",
        "",
    ),
    (
        "grants",
        "a living owner that does not use a claim keeps its devices",
        "self._unnamed.intersection(entry.made_for or ())",
        "self._unnamed.intersection(entry.owners)",
    ),
    (
        "grants",
        "claims give their devices up where that does not help",
        "    if not fits(group, info, _uids(gone)):\n        return []\n",
        "",
    ),
    (
        "grants",
        "more claims give their devices up than the pod needs",
        "        if fits(group, info, _uids(rest)):\n            gone = rest\n",
        "        rest.clear()\n",
    ),
    (
        "lease",
        "a process that is stuck renews its Lease all the same",
        "            if self.is_well():\n                self._take_or_renew()\n",
        "            self._take_or_renew()\n",
    ),
    (
        "lease",
        "a deleted Lease is a free one",
        'self._create(holderIdentity="", leaseDurationSeconds=round(self.times.lease))',
        "self._create(**_GIVEN_AWAY)",
    ),
    (
        "lease",
        "a Lease whose holder somebody blanked is a free one",
        '{name: spec.get(name) or "" for name in _GIVEN_AWAY} == _GIVEN_AWAY',
        'not spec.get("holderIdentity")',
    ),
    (
        "lease",
        "who stood still for longer than the lease mends it",
        "            if self.may_write():\n                self._repair(started)\n",
        "            self._repair(started)\n",
    ),
    (
        "lease",
        "a renewal counts from its answer",
        "self._lease, self._renewed = lease, started\n",
        "self._lease, self._renewed = lease, self.clock()\n",
    ),
    (
        "lease",
        "a Lease is given away although a write may still take effect",
        " or self.clock() <= self._settled:",
        ":",
    ),
    (
        "lease",
        "who ends gives away whatever Lease there is by then",
        "self.api.update(LEASES, self._with(lease, **_GIVEN_AWAY))",
        'self.api.update(LEASES, {**self._with(lease, **_GIVEN_AWAY), "metadata": {"name": self.name, "namespace": self.namespace}})',
    ),
    (
        "lease",
        "who finds another's name in the Lease writes on",
        '        elif (holder := _holder(lease)) in ("", self.identity):\n',
        "        elif (holder := _holder(lease)) or not holder:\n",
    ),
    (
        "evictions",
        "a node gets pods of other nodes evicted",
        '"" if there == node else',
        '"" if there else',
    ),
    (
        "evictions",
        "a pod that took another's name is evicted in its place",
        "objects.uid(pod) != request.uid",
        "not objects.uid(pod)",
    ),
    (
        "evictions",
        "a node's evictions are not counted",
        "            self._evicted.append((self.clock(), node))\n",
        "",
    ),
    (
        "health",
        "a thread that waits for others counts as stuck",
        " and not thread.rests else 0",
        " else 0",
    ),
    (
        "health",
        "looks go on counting although the thread gets on",
        "before.thread is thread and before.steps == steps",
        "before.thread is thread and before.steps <= steps",
    ),
    (
        "health",
        "a thread inherits the looks of the one before it",
        "before.thread is thread and before.steps == steps",
        "before.steps == steps",
    ),
    (
        "health",
        "a process that is stuck is well",
        "        return not self.stuck\n",
        "        return True\n",
    ),
    (
        "health",
        "a process that is stuck for good goes on",
        "            self._end()\n",
        "            pass\n",
    ),
    (
        "health",
        "nobody learns where a thread is stuck",
        "            self._write_stacks()\n",
        "            pass\n",
    ),
    (
        "health",
        "a page with one deep object is lost",
        "        return json.loads(_shallow(data)), True\n",
        "        raise\n",
    ),
    (
        "health",
        "what was cut out is taken for what was written",
        "_shallow(data)), True\n",
        "_shallow(data)), False\n",
    ),
    (
        "writer",
        "a defect ends the watch",
        "            except Exception as defect:\n",
        "            except () as defect:\n",
    ),
    (
        "writer",
        "after a defect the watch goes on from where it was",
        '                log.exception("watch_failed", kind=str(self.kind))\n                self._is_listed = False\n',
        '                log.exception("watch_failed", kind=str(self.kind))\n',
    ),
    (
        "writer",
        "an object that its listener cannot take ends the others",
        "        except Exception as error:\n            count_failure(error)\n            self._untold",
        "        except () as error:\n            count_failure(error)\n            self._untold",
    ),
    (
        "writer",
        "an object that its listener cannot take is never told again",
        "            self._untold[object_key] = event, obj\n",
        "            pass\n",
    ),
    (
        "writer",
        "what was not taken waits for the next event of that object",
        '        if event == "BOOKMARK":\n            self._tell_again()\n',
        "",
    ),
    (
        "writer",
        "a watch goes on from the version of its list",
        "        self._version = version or self._version\n        return True\n",
        "        self._version = self._version or version\n        return True\n",
    ),
    (
        "writer",
        "410 Gone never lists again",
        '                    log.warning("watch_interrupted", kind=str(self.kind), error=str(error))\n                self._is_listed = False\n',
        '                    log.warning("watch_interrupted", kind=str(self.kind), error=str(error))\n                self._is_listed = error.code == _GONE\n',
    ),
    (
        "writer",
        "an error never lists again",
        '                    log.warning("watch_interrupted", kind=str(self.kind), error=str(error))\n                self._is_listed = False\n',
        '                    log.warning("watch_interrupted", kind=str(self.kind), error=str(error))\n',
    ),
    (
        "writer",
        "a watch that broke off is listed again",
        "            except ApiUnreachable as error:\n",
        "            except () as error:\n",
    ),
    (
        "writer",
        "a stream that ends without a word is taken up again at once",
        "            yield backoff.next()\n",
        "            yield 0.2\n",
    ),
    (
        "writer",
        "a list that is answered makes the next failure a first one",
        "                    self._relist()\n",
        "                    self._relist()\n                    backoff.reset()\n",
    ),
    (
        "writer",
        "watches of what does not change are opened ever later",
        "                    if time.monotonic() - opened >= LASTED:\n",
        "                    if False:\n",
    ),
    (
        "client",
        "pages of a later moment complete a list",
        'items, query = [], {**query, "limit": "", "continue": ""}',
        'items, query = items, {**query, "limit": "", "continue": ""}',
    ),
    (
        "client",
        "a list that is gone at its first page is asked for again for ever",
        '                if not query.get("continue"):\n                    raise\n',
        "",
    ),
    (
        "client",
        "every watch ends after the same time",
        "round(WATCH_SECONDS * (1 + random.random()))",
        "round(WATCH_SECONDS * 1)",
    ),
    (
        "client",
        "a kind is looked for by a list of all of it",
        '{"limit": "1", ',
        "{",
    ),
    (
        "client",
        "a namespace that ends refuses for now",
        'if any(cause.get("reason") == "NamespaceTerminating" for cause in causes):',
        "if False:",
    ),
    (
        "client",
        "a Lease waits for its turn",
        "            if lane is Lane.LEASE:\n",
        "            if False:\n",
    ),
    (
        "client",
        "Events may use the whole bucket",
        "self._burst / 2 if lane is Lane.SPARE else 0.0",
        "0.0",
    ),
    (
        "client",
        "a waiting Event is before those that come later",
        "            if lane is not Lane.SPARE:\n                break",
        "            if True:\n                break",
    ),
    (
        "client",
        "waiting does not count in a request's time",
        "        return max(ends - self._clock(), 0.001)\n",
        "        return within\n",
    ),
    (
        "client",
        "a request waits longer than it may take",
        "            if now + pause > ends:\n",
        "            if False:\n",
    ),
    (
        "client",
        "a proxy's Retry-After is kept for days",
        "min(seconds, LONGEST_REST)",
        "seconds",
    ),
    (
        "client",
        "a disruption budget holds every request back",
        ' and not path.endswith("/eviction"):',
        ":",
    ),
    (
        "client",
        "pauses are not drawn",
        "        return pause * (0.5 + self._draw())\n",
        "        return pause\n",
    ),
    (
        "client",
        "pauses grow without a bound",
        "pause = min(self._first * 2.0 ** min(self.failures, 30), longest or self._longest)",
        "pause = self._first * 2.0 ** min(self.failures, 30)",
    ),
    (
        "publisher",
        "each look at the slices is a request",
        "        if self._is_in_order():\n            return False\n",
        "",
    ),
    (
        "publisher",
        "slices that were taken away are not missed",
        "        return versions == _versions(self._seen_slices.objects()) and same_content(\n",
        "        return same_content(\n",
    ),
    (
        "publisher",
        "a wake cuts the pause after a failure short",
        "        return Pause(seconds, seconds)\n",
        "        return Pause(0.0, seconds)\n",
    ),
    (
        "lookups",
        "a review asks for everything that a pod names",
        "        if found is None and self._left:\n",
        "        if found is None:\n",
    ),
    (
        "lookups",
        "each review of a burst asks for itself",
        "            under_way = self._asked.get(place)\n",
        "            under_way = None\n",
    ),
    (
        "lookups",
        "look-ups do not give way to allocations",
        ", spare_within=WITHIN)",
        ")",
    ),
    (
        "events",
        "an Event of one's own is created anew each time",
        "        count = self._counts.pop(place, 0)\n",
        "        count = 0\n",
    ),
    (
        "events",
        "the first no of a server that has just started is its last",
        "            return False\n        except Exception as error:",
        "            return True\n        except Exception as error:",
    ),
    (
        "events",
        "a namespace that refuses is asked for each of its Events",
        "            refused.due = self._clock() + refused.backoff.next()\n",
        "            refused.backoff.next()\n",
    ),
    (
        "events",
        "what is refused for good is kept for ever",
        "each.backoff.failures >= MOST_REFUSALS}",
        "False}",
    ),
    (
        "events",
        "one object may fill the Events of a cluster",
        " and spent <= BURST - 1\n",
        "\n",
    ),
    (
        "events",
        "a server that is away is asked all the time",
        "                    stop.wait(backoff.next())\n        self.flush()",
        "                    pass\n        self.flush()",
    ),
    (
        "events",
        "what was kept counts once",
        "        times = told.times + (before.times if before else 0)\n",
        "        times = told.times\n",
    ),
    (
        "writer",
        "a second silent write is forgotten",
        "        self._pending[objects.uid(claim)] = PendingWrite(claim, allocation)\n",
        "        self._pending.pop(objects.uid(claim), None) or self._pending.update({objects.uid(claim): PendingWrite(claim, allocation)})\n",
    ),
    (
        "writer",
        "a give-back that does not depend on the claim's version",
        "        return self._patch_claim(claim, _no_allocation(claim))\n",
        '        return self._send(RESOURCE_CLAIMS, claim, _no_allocation(claim), subresource="status")\n',
    ),
    (
        "writer",
        "no write of a claim depends on its version",
        '    return {"resourceVersion": objects.resource_version(obj), "uid": objects.uid(obj)}\n',
        '    return {"uid": objects.uid(obj)}\n',
    ),
    (
        "policy",
        "what is not the claim's is the class's",
        'of_class = raw.get("source") == FROM_CLASS',
        'of_class = raw.get("source") != "FromClaim"',
    ),
    (
        "policy",
        "the order in which a claim is written decides",
        "key=lambda entry: (not entry.of_class, bool(entry.requests))",
        "key=lambda entry: not entry.of_class",
    ),
    (
        "policy",
        "an entry for a request is not for its alternatives",
        'named.isdisjoint((request, request.partition("/")[0]))',
        "named.isdisjoint((request,))",
    ),
    (
        "policy",
        "the claim's word stands above the class's",
        "chosen = word or AUTO if configured == AUTO else configured or word",
        "chosen = word or AUTO if configured == AUTO else word or configured",
    ),
    (
        "policy",
        "a class that allows a share without limits makes nodes allow it",
        '(("class", self.policy.allowed), ("node", node.allowed))',
        '(("class", self.policy.allowed), ("node", self.policy.allowed or node.allowed))',
    ),
    (
        "policy",
        "a claim gets what draws past its limit",
        "uncounted = (asked - given) & UNCOUNTED",
        "uncounted = (asked - ALL) & UNCOUNTED",
    ),
    (
        "policy",
        "a claim's neighbours are not looked at",
        "for holder in (others if share else ())",
        "for holder in (others if not share else ())",
    ),
    (
        "policy",
        "a share that a policy of before allowed changes with the next call",
        "decided = _own(record, device, config) or (kept and kept.isolation)",
        "decided = _own(record, device, config)",
    ),
    (
        "gangs",
        "a launcher that came past its gate starts its gang",
        "self.is_committed and (self.let_go or self.claims is None or self.concerns_koordra)",
        "self.is_committed",
    ),
    (
        "gangs",
        "in a gang that has started who runs counts twice",
        "((not started and one.is_bound) or self.is_without_claims(one) for",
        "(one.is_bound or self.is_without_claims(one) for",
    ),
    (
        "gangs",
        "whose turn has not come has no seat",
        "for member in gang.members if (seat := _seat(member)) is not None]",
        "for member in gang.members if not member.is_held and (seat := _seat(member)) is not None]",
    ),
    (
        "gangs",
        "what was held for a suspended MPIJob stays held",
        'objects.fields(spec.get("runPolicy")).get("suspend")',
        "None",
    ),
    (
        "gangs",
        "the job is not asked what a lost member asked",
        "answer = self.jobs.job_of(gang) if unknown else Answer()",
        "answer = Answer()",
    ),
    (
        "gangs",
        "groups that are not there yet are not waited for",
        "if missing > 0:",
        "if missing > 1000:",
    ),
    (
        "gangs",
        "a group that is not needed is placed in part",
        "return 0 < len(one.members.intersection(placed)) < one.least",
        "return len(one.members.intersection(placed)) < 0 < one.least",
    ),
    (
        "gangs",
        "groups that end together start by themselves",
        'or "all" in objects.fields(spec.get("disruptionMode"))',
        'or "any" in objects.fields(spec.get("disruptionMode"))',
    ),
)

WEIGHTS: Final = (
    "RELAXATION",
    "ALTERNATIVE",
    "NEARNESS",
    "NVLINK",
    "UNLINKED",
    "COMPACTNESS",
    "BROKEN",
    "COMPACT",
    "_WHOLE",
    "PARTITION_WEIGHTS",
    "CARD",
)

FEASIBILITY: Final = "koordra.allocator.search.feasibility"


def named() -> Iterator[Mutant]:
    for area, title, text, becomes in TEXTS:
        yield _of_text(area, title, text, becomes)


def is_named(mutant: Mutant) -> bool:
    """Every number of the weights of the score, and every bound that is off by one."""
    if mutant.area == "score":
        return mutant.constant in WEIGHTS and isinstance(mutant.value, ast.Constant)
    return mutant.module == FEASIBILITY and mutant.moves_a_bound


def _of_text(area: str, title: str, text: str, becomes: str) -> Mutant:
    found = [(module, source) for module, source in _sources(area) if text in source]
    if len(found) != 1 or found[0][1].count(text) != 1:
        raise LookupError(f"tests/mutants/named.py: {title}: not found once in {area}: {text!r}")
    ((module, source),) = found
    first = source[: source.index(text)].count("\n") + 1
    lines = range(first, first + max(1, text.rstrip("\n").count("\n") + 1))
    tree = ast.parse(source.replace(text, becomes + "\n" * (text.count("\n") - becomes.count("\n"))))
    ((where, constant),) = {
        (where, constant)
        for where, statement, constant in definitions(tree.body)
        if statement.lineno <= first <= (statement.end_lineno or 0)
    }
    return Mutant(area, module, where, title, lines, tree, constant)


def _sources(area: str) -> Iterable[tuple[str, str]]:
    return ((module, path.read_text()) for module, path in files(area).items())
