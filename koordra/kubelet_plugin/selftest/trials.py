"""Programs in containers with a claim: prepared, applied, run one after the other, and judged.

A program that fails where the spec is applied is run once more without koordra, as far as the budget goes:
what fails there too is the machine's."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, Final

from koordra.kubelet_plugin.claims.claim_record import NO_EDITS
from koordra.kubelet_plugin.selftest import judgement
from koordra.kubelet_plugin.selftest.claims import AppliedClaim, ClaimPreparation, WantedClaim
from koordra.kubelet_plugin.selftest.container import (
    Command,
    Container,
    NamespaceContainer,
    ProcessContainer,
    without_spec,
)
from koordra.kubelet_plugin.selftest.core_shares import LONGEST, CoreShares
from koordra.kubelet_plugin.selftest.judgement import Expected
from koordra.kubelet_plugin.selftest.limiter_watch import watched
from koordra.kubelet_plugin.selftest.program_checks import CORE_LOADS, ProgramCheck, cores_step, step_name
from koordra.kubelet_plugin.selftest.program_runs import LEAST_SECONDS, Answer, Stopwatch, run
from koordra.kubelet_plugin.selftest.programs.answer import MARK
from koordra.kubelet_plugin.selftest.report import Finding, Report, Step, ok, problem, skipped
from koordra.kubelet_plugin.status.dump import without_nonces
from koordra.topology.machine import Gpu

PROGRAMS: Final = "koordra.kubelet_plugin.selftest.programs"
_PLAIN: Final = "a plain process with the spec's variables and libraries"
_NONE: Final = "run as root where mounts and namespaces are allowed, or with --container process"


class Trials:
    """`container`: `auto`, `namespace` or `process`, chosen with the first claim; `native` is where
    bench-gpu may be, `nvml` the machine's libnvidia-ml.so.1; `only`: patterns of the names of the steps that
    run, none: all of them."""

    def __init__(
        self,
        report: Report,
        watch: Stopwatch,
        *,
        folder: Path,
        native: Path,
        nvml: Path | None,
        python: str,
        container: str = "auto",
        only: tuple[str, ...] = (),
    ) -> None:
        self._report = report
        self._watch = watch
        self._folder = folder
        self._native = native
        self._nvml = nvml or "libnvidia-ml.so.1"
        self._python = python
        self._wanted = container
        self._only = only
        self._container: Container | None = None
        self._kept: dict[str, Mapping[str, Any]] = {}

    def of_claim(self, claims: ClaimPreparation, wanted: WantedClaim, checks: Sequence[ProgramCheck]) -> None:
        """Prepare the claim, run the programs with it, and unprepare it; each a step."""
        prepared: list[AppliedClaim] = []
        with ExitStack() as held:

            def prepare() -> Finding:
                prepared.append(held.enter_context(claims.prepared(wanted)))
                return self._spec(prepared[0])

            self._report.step(f"{wanted.name}: spec", prepare)
            for claim in prepared:
                if self._container is None:
                    self._report.step("container", partial(self._choose, claim))
                expected = Expected(
                    uuid=wanted.gpu.uuid or "",
                    memory=wanted.gpu.memory_bytes or 0,
                    limit=claim.limit,
                    own_devices=isinstance(self._container, NamespaceContainer),
                    context=claims.contexts.bytes_for(wanted.gpu.uuid or ""),
                )
                for check in checks:
                    self._try(step_name(wanted.name, check), check, claim, expected)
                self._report.step(f"{wanted.name}: unprepare", lambda: _undone(held))

    def _spec(self, claim: AppliedClaim) -> Finding:
        self._report.attach(
            f"specs/{claim.name}.json", json.dumps(without_nonces(claim.spec, set()), indent=1)
        )
        edits = claim.edits
        found = (
            f"{len(edits.device_nodes)} device nodes, {len(edits.mounts)} mounts, {len(claim.hooks)} hooks"
        )
        if not any("libcuda.so" in mount.container_path for mount in edits.mounts):
            return problem(f"{found}; no libcuda among them", "name the driver's folder with --driver-root")
        return ok(found)

    def _choose(self, claim: AppliedClaim) -> Finding:
        """Namespaces, if a program that does nothing runs in them without the spec; then with it, which has
        to go. Where it does not, a plain process, so that the programs are tried all the same."""
        plain = ProcessContainer(self._folder)
        if self._wanted == plain.kind:
            self._container = plain
            return ok(_PLAIN)
        namespaces = NamespaceContainer(self._folder)
        bare = self._nothing(namespaces, replace(claim, edits=NO_EDITS, hooks=()))
        applied = self._nothing(namespaces, claim) if bare.document is not None else bare
        works = applied.document is not None
        self._container = namespaces if works or self._wanted == namespaces.kind else plain
        if works:
            return ok("namespaces with an overlay of this machine's root: as in an image")
        if bare.document is not None:
            return problem(applied.failure, "see the spec and its hook: without them there is a container")
        if self._wanted == namespaces.kind:
            return problem(bare.failure, _NONE)
        return ok(f"{_PLAIN}, for there is {bare.failure}")

    def _nothing(self, container: Container, claim: AppliedClaim) -> Answer:
        program = (self._python, "-c", f"print('{MARK}{{}}')")
        return run(container.command(claim, program, {}), folder=self._folder, deadline=self._deadline(60))

    def _try(self, name: str, check: ProgramCheck, claim: AppliedClaim, expected: Expected) -> None:
        wanted = self._only
        if wanted and not any(fnmatch(name, pattern) for pattern in wanted):
            return
        if self._watch.left < LEAST_SECONDS:
            self._report.add(Step(name, self._watch.used_up()))
            return
        argv = (
            self._python,
            "-m",
            f"{PROGRAMS}.{check.program}",
            *check.arguments(expected, self._native),
        )
        self._report.step(name, lambda: self._answered(name, check, claim, expected, argv))

    def _answered(
        self, name: str, check: ProgramCheck, claim: AppliedClaim, expected: Expected, argv: tuple[str, ...]
    ) -> Finding:
        assert self._container is not None
        folder = self._folder
        region = claim.region if check.cuda else None
        with watched(region, self._card_memory(claim)) as limiter:
            answer = self._run(self._container.command(claim, argv, check.settings), check)
        self._report.attach(f"programs/{name.replace(': ', '-')}.txt", _transcript(argv, answer))
        if answer.lacking:
            return skipped(answer.lacking)
        if answer.document is None:
            remedy, details = "see programs/ of the report", {}
            if self._watch.left > check.deadline / 2 and not answer.no_container:
                alone = self._run(without_spec(folder, argv, check.settings), check)
                fails = alone.document is None
                details["withoutKoordra"] = alone.failure or alone.lacking or "it answers"
                remedy += "; it fails without koordra too" if fails else "; without koordra it answers"
            return problem(answer.failure, remedy, **details)
        self._kept[name] = answer.document
        if check.judge is None:
            return ok("measured", **answer.document)
        finding = check.judge(answer.document, expected)
        if limiter is not None:
            finding = limiter.judged(finding, expected)
        return replace(finding, details={**answer.document, **finding.details})

    def _card_memory(self, claim: AppliedClaim) -> Command:
        program = (sys.executable, "-m", f"{PROGRAMS}.card_memory")
        return without_spec(self._folder, (*program, str(self._nvml), claim.gpu.uuid or ""), {})

    def _run(self, command: Command, check: ProgramCheck) -> Answer:
        return run(command, folder=self._folder, deadline=self._deadline(check.deadline))

    def _deadline(self, seconds: float) -> float:
        return max(LEAST_SECONDS, min(seconds, self._watch.left))

    def core_shares(self, claims: ClaimPreparation, gpu: Gpu, memory: int) -> None:
        """A step for each load; none where no container was found before."""
        if self._container is None:
            return
        shares = CoreShares(
            claims,
            type(self._container),
            gpu=gpu,
            memory=memory,
            folder=self._folder,
            program=lambda arguments: (self._python, "-m", f"{PROGRAMS}.{arguments[0]}", *arguments[1:]),
        )
        for load in CORE_LOADS:
            name = cores_step(load)
            if self._only and not any(fnmatch(name, pattern) for pattern in self._only):
                continue
            if self._watch.left < LONGEST:
                self._report.add(Step(name, self._watch.used_up()))
                continue
            self._report.step(name, partial(shares.try_load, load))

    def overhead(self) -> Finding:
        try:
            bare, limited = self._kept["whole: costs"], self._kept["share: costs"]
        except KeyError as missing:
            return skipped(f"{missing.args[0]} has no answer")
        return judgement.overhead(
            *({k: v for k, v in each.items() if k != "mapped"} for each in (bare, limited))
        )


def _undone(held: ExitStack) -> Finding:
    held.close()
    return ok("undone")


def _transcript(argv: Sequence[str], answer: Answer) -> str:
    mapped = (answer.document or {}).get("mapped") or ()
    return "\n".join([" ".join(argv), *mapped, answer.output])
