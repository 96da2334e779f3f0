"""What somebody who may write pods, or who runs code in one, tries against the isolation of cards and NICs.

A row has a test of its name in tests/e2e/test_attacks.py, inside real containers, or names the tests that
show it.
"""

from __future__ import annotations

from typing import Final

from tests.attacks.row import Attack, Seen, condition, event, metric


def refusal(rule: str) -> Seen:
    return metric(f'koordra_nri_refusals_total{{rule="{rule}"}}')


def drift(kind: str) -> tuple[Seen, ...]:
    return event("IsolationDrift"), metric(f'koordra_nri_drift_found_total{{kind="{kind}"}}')


CONTAINERS: Final = (
    Attack(
        "visible-devices-all",
        "`NVIDIA_VISIBLE_DEVICES=all` in the pod or its image",
        "denied",
        "the hook sets it to `void` in every container; no device rule opens a card",
    ),
    Attack(
        "repeated-variable",
        "a variable that the hook sets stands twice in the container's environment, the wanted value last: "
        "`NVIDIA_VISIBLE_DEVICES` in image and pod",
        "denied",
        "the runtimes replace the first value, and the last one wins; the hook puts `void,=` after both, which NVIDIA's "
        "toolkit takes for `void`. Any other variable that must have one value: refused (rule RepeatedVariable)",
    ),
    Attack(
        "mknod",
        "root with CAP_MKNOD makes the node of another card, or of nvidiactl, inside the container",
        "denied",
        "the device cgroup: no rule for a device that is not held",
    ),
    Attack(
        "hostpath-card",
        "hostPath volume of /dev/nvidia0",
        "refused",
        "rule ForeignMount",
        seen=(refusal("ForeignMount"),),
    ),
    Attack(
        "hostpath-dev",
        "hostPath volume of /dev",
        "refused",
        "rule ForeignMount",
        seen=(refusal("ForeignMount"),),
    ),
    Attack(
        "hostpath-root",
        "hostPath volume of the whole host, and opening the node below it",
        "denied",
        "the device cgroup; a mount alone opens nothing",
    ),
    Attack(
        "hostpath-symlink",
        "hostPath volume of a symbolic link that leads to /dev/nvidia0 or to koordra's state",
        "refused",
        "the runtime resolves the link before it asks; rules ForeignMount and NodeState",
        seen=(
            refusal("ForeignMount"),
            refusal("NodeState"),
        ),
    ),
    Attack(
        "hostpath-state",
        "hostPath volume of koordra's state, the CDI directory or the runtime's plugin socket",
        "refused",
        "rule NodeState",
        seen=(refusal("NodeState"),),
    ),
    Attack(
        "hostpath-above-state",
        "hostPath volume of a folder above koordra's state (`/var/lib/kubelet`, `/run`, `/`), and reading the records there",
        "open",
        "storage plugins, node exporters and network plugins need such volumes. Who reads there learns the nonces of claims, "
        "and who writes there is root on the node; the device cgroup still holds (see `hostpath-root`). Pod Security "
        "`baseline` forbids hostPath: enforce it in every namespace of users",
    ),
    Attack(
        "hostpath-race",
        "a directory of a hostPath volume is exchanged for a link to /dev while containers are created",
        "denied",
        "the device cgroup; the race may win the mount, never the device",
    ),
    Attack(
        "host-device",
        "a device node of the host through the CRI (a device plugin, or a changed kubelet)",
        "refused",
        "rule UngrantedDevice",
        seen=(refusal("UngrantedDevice"),),
    ),
    Attack(
        "toolkit-mount",
        "a volume below /var/run/nvidia-container-devices, which asks NVIDIA's toolkit for cards",
        "refused",
        "rule ForeignMount",
        seen=(refusal("ForeignMount"),),
    ),
    Attack(
        "cdi-annotation",
        "annotation `cdi.k8s.io/...` that names another pod's claim",
        "refused",
        "rule ForeignCDIDevice",
        seen=(refusal("ForeignCDIDevice"),),
    ),
    Attack(
        "privileged",
        "a privileged container opens every card",
        "refused",
        "rule CannotDeny: such runtimes drop the rules that deny; from containerd 2.2 and CRI-O 1.34 on they are applied, and "
        "the cards are denied (a privileged container can undo that on cgroup version 1: see `cgroup-write`)",
        seen=(refusal("CannotDeny"),),
        newer="denied",
    ),
    Attack(
        "privileged-holder",
        "a privileged container with a claim for one card opens the others",
        "open",
        "it starts, with CUDA told which card is its own, an Event and the condition `NotConfined` of its claim. To refuse it: "
        "component `nri/refuse-privileged`, or Pod Security `baseline` in every namespace of users",
        seen=(
            event("NotConfined"),
            condition("NotConfined: True"),
        ),
        newer="denied",
    ),
    Attack(
        "critical-priority",
        "a privileged container whose pod names the class system-node-critical opens every card",
        "open",
        "pods of this priority must start, or the node does not come up; it is an Event of the pod. Who may use the class is for "
        "a ResourceQuota to say (`scopeSelector` PriorityClass, with `limitedResources` in the API server's admission "
        "configuration). Not privileged, the pod gains nothing by it alone: see `passes-for-a-monitor`",
        seen=(event("NotConfined"),),
        newer="denied",
    ),
    Attack(
        "passes-for-a-monitor",
        "a pod that is not privileged names the class system-node-critical and has the host's folder of the kubelet's pod "
        "resources, as dcgm-exporter does",
        "open",
        "it keeps the cards that NVIDIA's runtime gives to images that ask for all. Pod Security `baseline` forbids "
        "the hostPath volume; a volume of another kind, or a privileged container, gains nothing by it",
        seen=(event("NotConfined"),),
        tests=(
            "tests/unit/nri/hook/test_shipped_pods.py::test_dcgm_exporter_keeps_the_cards_of_nvidias_runtime",
            "tests/unit/nri/verify/test_verify.py::test_what_nvidias_runtime_gave_a_monitor_is_a_notice",
            "tests/unit/nri/hook/test_shipped_pods.py::test_who_passes_for_a_monitor_gets_no_card",
            "tests/unit/nri/hook/test_shipped_pods.py::test_a_privileged_monitor_is_denied_the_cards_like_others",
        ),
    ),
    Attack(
        "namespace-of-the-list",
        "somebody makes a namespace that `--exempt-namespace` lists and nobody has yet (`calico-system`), and runs pods there",
        "open",
        "nothing is taken away there. Who may make namespaces of any name administers the cluster; give tenants namespaces, or "
        "a prefix of their own, and shorten the list to what is installed",
    ),
    Attack(
        "api-away",
        "a privileged pod on the host's network, bound to the node before, is tried again while the API server does not answer",
        "detected",
        "the server may be away because the network is, and the network is such a pod: it starts. Nobody creates pods meanwhile; "
        "one whose priority was asked before is refused as before. Once the server is back, who was nobody's is a breach "
        "(difference ForeignDevice), and evicted with `nri/evict`",
        seen=drift("ForeignDevice"),
        tests=("tests/e2e/test_system_pods.py::test_while_the_api_is_away_the_network_still_starts",),
    ),
    Attack(
        "looks-like-the-node",
        "a privileged container whose pod carries the annotations of static and critical pods and the label "
        "koordra.io/exempt=true",
        "refused",
        "rule CannotDeny: the kubelet writes the annotation of static pods itself, and the label counts on namespaces only",
        seen=(refusal("CannotDeny"),),
        newer="denied",
    ),
    Attack(
        "override-limits",
        "the pod sets KOORDRA_MEMORY_LIMIT_0 itself, to more than its share",
        "denied",
        "CDI and the hook set the claim's values; whatever else is set is overwritten",
    ),
    Attack(
        "names-other-devices",
        "a pod with a claim names cards or NICs of others: UUIDs in CUDA_VISIBLE_DEVICES, devices in NCCL_IB_HCA or "
        "UCX_NET_DEVICES",
        "refused",
        "rule ForeignDeviceNamed. Numbers in CUDA_VISIBLE_DEVICES count the container's own cards, and stay. None of it opens "
        "a device: that is the device rules' part",
        seen=(refusal("ForeignDeviceNamed"),),
    ),
    Attack(
        "refusal-too-long",
        "a container that the hook refuses for a mount path, or the value of a variable, so long and of such letters that the "
        "runtime would not take an answer that quotes it, would wait in vain, drop the hook and create the container",
        "refused",
        "what a refusal quotes is cut to what a person reads, in the answer and in the log",
        seen=(refusal("ForeignMount"), refusal("ForeignDeviceNamed")),
    ),
    Attack(
        "forged-marker",
        "a claim's marker variable with a made-up value",
        "refused",
        "rule ForgedMarker or UnknownClaim: the nonce is 128 random bits that only the node knows",
        seen=(
            refusal("ForgedMarker"),
            refusal("UnknownClaim"),
        ),
    ),
    Attack(
        "granted-marker",
        "a claim's marker variable with the value that containers see, `granted`",
        "refused",
        "rule ForgedMarker",
        seen=(refusal("ForgedMarker"),),
    ),
    Attack(
        "replayed-marker",
        "another pod's nonce, read in a container that was created while no hook was registered",
        "refused",
        "rule ForgedMarker: the claim's device nodes did not come with it",
        seen=(refusal("ForgedMarker"),),
    ),
    Attack(
        "marker-of-other-namespace",
        "the genuine nonce of a claim of another namespace",
        "refused",
        "rule ForgedMarker",
        seen=(refusal("ForgedMarker"),),
    ),
    Attack(
        "state-symlink",
        "the claim's record is exchanged for a symbolic link to a file of the attacker",
        "refused",
        "rule UnreadableState: records are opened without following links, and only as root's own regular files",
        seen=(refusal("UnreadableState"),),
    ),
    Attack(
        "killed-hook",
        "the hook is killed; a claim's container is created without it",
        "detected",
        "difference HookMissed. Where the runtime knows required plugins (containerd 2.2, CRI-O 1.34) and they are set up, "
        "the container is refused instead",
        seen=drift("HookMissed"),
        newer="refused",
    ),
    Attack(
        "killed-hook-forged-marker",
        "the hook is killed; a container with a self-made `granted` marker is created",
        "detected",
        "difference ForgedMarker: the hook has no entry of it",
        seen=drift("ForgedMarker"),
        newer="refused",
    ),
    Attack(
        "cgroup-write",
        "a container with CAP_SYS_ADMIN mounts its device cgroup (version 1) and writes devices.allow",
        "detected",
        "difference ForeignDevice, from the kernel's own list. Version 2 has no such file. Pod Security `baseline` forbids "
        "the capability",
        seen=drift("ForeignDevice"),
    ),
    Attack(
        "cgroup-allow-all",
        "a container with CAP_SYS_ADMIN mounts its device cgroup (version 1) and writes `a` to devices.allow, which opens "
        "every device at once",
        "detected",
        "difference ForeignDevice: the kernel's list then says `a *:* rwm`. Pod Security `baseline` forbids the capability",
        seen=drift("ForeignDevice"),
    ),
    Attack(
        "leave-cgroup",
        "a container with CAP_SYS_ADMIN mounts the device cgroups (version 1) and moves a process of its own into the "
        "topmost one, then opens a card",
        "open",
        "the kernel looks at the process's cgroup, and verification at the container's, which is unchanged. Such a container "
        "is root on the node in all but name. Pod Security `baseline` forbids the capability: enforce it in every namespace "
        "of users",
    ),
    Attack(
        "past-the-kubelet",
        "a container started through the runtime's own socket, without kubelet and CRI",
        "detected",
        "difference ForeignDevice, or NotAdjusted while it opens no card: NRI is not told of it, its bundle is found. Who has "
        "the socket is root on the node: Pod Security `baseline` forbids hostPath",
        seen=drift("ForeignDevice")[1:],  # of no pod, so nobody's Event
    ),
    Attack(
        "passed-descriptor",
        "a holder passes its open descriptor of a card to another container through a shared socket",
        "open",
        "the kernel checks when a device is opened. The holder gives away its own share; the limiter counts the process by "
        "its container. Do not share volumes between tenants",
        not_run="a made-up card has no driver, so nobody can have it open",
    ),
    Attack(
        "unlimited-share",
        "a claim asks for a share of a card with `isolation: none`, or for a policy of its own (`allowedIsolation`)",
        "refused",
        "the operator's policy of node and class stands above the claim: the webhook refuses what the class does not allow, the "
        "allocator leaves nodes out that do not (BackendUnavailable), and Prepare refuses it on the node",
        seen=(event("BackendUnavailable"),),
        tests=(
            "tests/unit/webhook/test_claims.py::test_a_class_says_what_may_keep_its_shares",
            "tests/unit/allocator/test_isolation.py::test_a_share_without_limits_goes_where_the_operator_allows_it",
            "tests/unit/kubelet_plugin/test_isolation.py::test_a_share_is_limited_unless_the_operator_says_otherwise",
        ),
    ),
    Attack(
        "unlimited-neighbour",
        "a share without limits on a card where another tenant's share is limited",
        "refused",
        "a node's policy lists `none` alone or not at all, and Prepare refuses a share beside one of another kind, from before a "
        "change of policy, say",
        tests=(
            "tests/unit/kubelet_plugin/test_isolation.py::test_where_one_share_of_a_card_is_limited_all_are",
        ),
    ),
    Attack(
        "mps-socket",
        "a container without a share of the card brings the sockets of its MPS daemon by a hostPath volume, to send it commands or "
        "to be its client; or a holder would write there, to pass for the daemon",
        "refused",
        "rule NodeState: the folder of a card's daemon (MPS v3: of the claim's namespace there) is mounted in containers that hold a share "
        "of that card, its sockets read-only",
        tests=("tests/unit/nri/hook/test_adjust.py::test_sockets_of_mps_are_for_those_who_hold_the_card",),
    ),
    Attack(
        "mps-fault",
        "a program has a fatal fault on a card that others use by MPS: all of the card's clients end",
        "bounded",
        "the claims of a card are of one namespace, unless the operator says `--mps-shared`",
        tests=(
            "tests/unit/kubelet_plugin/test_card_backends.py::test_a_card_is_one_fault_domain_and_a_namespaces",
            "tests/unit/kubelet_plugin/test_card_backends.py::test_a_server_with_a_fault_is_told",
        ),
    ),
    Attack(
        "mps-own-limits",
        "a program removes the variables with its limits before it becomes a client of MPS, or begins many processes",
        "open",
        "with MPS v3 (`koordra.io/mpsProtocol` 3) the limits are the server's, for each claim and process; a variable for a card that the "
        "process does not have lifts its memory's there (NVIDIA measured it). With v2 they are those of the largest share on the card. Make "
        "the shares of a card equal; where tenants do not trust each other, MIG is the barrier that holds",
        tests=(
            "tests/unit/kubelet_plugin/test_named_mps_servers.py::test_each_claim_has_limits_of_its_own_at_the_server",
            "tests/unit/kubelet_plugin/test_card_backends.py::test_the_daemons_limits_are_those_of_the_largest_share_there_is",
        ),
    ),
    Attack(
        "hami-core-past",
        "a program of a share that HAMi's library keeps is linked statically, or brings a C library of its own, or makes the driver's "
        "calls itself; or several containers hold the claim, each with its limits",
        "open",
        "the library limits who loads it, each container by itself (an image of musl does not start). It is a choice of the operator for tenants that do not mean harm; "
        "the word is off where nobody allows it, and MIG is the barrier that holds",
        tests=(
            "tests/unit/kubelet_plugin/test_hami_core.py::test_a_share_gets_what_hamis_device_plugin_gives",
        ),
    ),
    Attack(
        "hami-core-library",
        "a tenant, or whoever may write there, replaces the library that every program of a share loads",
        "refused",
        "a folder or file that everybody may write is not used; containers have library and preload read-only",
        tests=(
            "tests/unit/kubelet_plugin/test_hami_core.py::test_a_folder_that_cannot_be_used_is_offered_to_nobody",
        ),
    ),
    Attack(
        "hami-core-cards",
        "a container has shares of two sizes, or a whole card beside one, and the library gives one of them the other's limit",
        "refused",
        "rules ConflictingEnv and HamiCoreCards",
        tests=(
            "tests/unit/nri/hook/test_adjust.py::test_hamis_library_holds_all_cards_of_a_container_to_one_limit",
        ),
    ),
    Attack(
        "mps-other-user",
        "containers of several users on a card: with a control daemon that knows no multi-user servers, those of the second user wait "
        "until the first one's have ended",
        "open",
        "the daemon is started for several users where it can be (`nvidia-cuda-mps-control -h`)",
        tests=(
            "tests/unit/kubelet_plugin/test_card_backends.py::test_a_share_of_mps_is_a_client_of_the_cards_own_server",
        ),
    ),
    Attack(
        "image-driver",
        "an image brings a CUDA driver of its own: in its loader's cache, in glibc-hwcaps folders, in /usr/local/cuda/compat, by RPATH, "
        "by LD_LIBRARY_PATH, or its programs open it by its path",
        "denied",
        "every program of glibc preloads the limiter, which is what each of these names opens; a newer driver of the "
        "image stands behind it",
        tests=(
            "tests/e2e/test_loader.py::test_no_accident_of_an_image_gets_past_the_limiter",
            "tests/e2e/test_loader.py::test_an_images_newer_driver_stands_behind_the_limiter",
        ),
    ),
    Attack(
        "preloaded-driver",
        "LD_PRELOAD of a CUDA driver in the pod or its image",
        "refused",
        "the CDI hook refuses a share with it. A script that sets it in the container: see `past-the-limiter`",
        tests=("tests/e2e/test_loader.py::test_a_preloaded_driver_is_refused_in_words",),
    ),
    Attack(
        "past-the-limiter",
        "a program goes past the limiter: root renames /etc or the limiter's folders or puts a region of its own beside the claim's, an LD_PRELOAD or a loader of the program's own "
        "(Nix has one), a changed copy of the limiter's paths in another mount namespace or below a chroot, static code, requests of its own on the device nodes",
        "detected",
        "within 10 s, by NVML's bytes and processes against the region: condition `Limited: False`, OutsideLimiter for a process without a "
        "slot, OverLimit for more than share and context in three samples, with an Event; `--on-overuse evict` evicts. A process that shows no "
        "mount of ours, under another root or in another mount namespace, is known by its container's cgroup. What it took counts, so the claim's other programs get less. MIG is the barrier that holds",
        seen=(
            condition("Limited: False"),
            event("OverLimit"),
        ),
        tests=(
            "tests/e2e/test_limiter.py::test_who_goes_past_the_limiter_is_told_and_evicted",
            "tests/unit/limiter/test_reconcile_interval.py::test_overuse_is_told_within_ten_seconds_of_its_first_byte",
        ),
    ),
    Attack(
        "falsified-time",
        "a program of a share whose cores are limited writes into its claim's region that it was charged less, or that its launches cost a sixteenth, or "
        "cuts the file short",
        "detected",
        "it gets more of the GPU's time than its share, at the expense of what others leave idle: each claim's word is its own. What it really had is the "
        "driver's word, which the node writes where the tenant cannot, and shows beside the share that it is held to; who has had three seconds too "
        "much is told",
        seen=(
            condition("Limited: False"),
            event("OverTime"),
            metric("koordra_limiter_seen_device_seconds_total"),
        ),
        tests=(
            "tests/unit/limiter/test_seen_time.py::test_who_falsifies_its_region_gets_more_and_everybody_sees_it",
            "tests/unit/limiter/test_seen_time.py::test_who_has_more_than_its_share_for_a_while_is_over_its_time",
            "tests/unit/limiter/test_condition.py::test_where_device_time_is_limited_the_condition_says_so",
            "tests/unit/kubelet_plugin/status/test_overuse_report.py::test_who_has_had_more_time_is_told_and_stays",
        ),
    ),
    Attack(
        "falsified-use",
        "a process would count as another pod's, or as nobody's: a name with line ends and brackets in it, cgroups of its own that are called like another "
        "container's, processes so short-lived that nobody finds them, a pid that is used again",
        "denied",
        "the outermost container of a cgroup's path counts, below the pod's; the start time belongs to a pid; who ended between two looks is known by the "
        "claim's socket; time that is nobody's is shown as such",
        tests=(
            "tests/unit/kubelet_plugin/sampling/test_host_processes.py::test_what_a_container_calls_its_own_cgroups_changes_nothing",
            "tests/unit/kubelet_plugin/sampling/test_host_processes.py::test_who_ended_between_two_looks_is_still_known",
            "tests/unit/kubelet_plugin/sampling/test_host_processes.py::test_a_pid_that_is_used_again_is_another_process",
            "tests/unit/kubelet_plugin/sampling/test_sampler.py::test_a_process_may_have_any_name",
            "tests/unit/kubelet_plugin/sampling/test_sampler.py::test_time_is_counted_for_the_container_and_kept_when_its_process_ends",
        ),
    ),
    Attack(
        "stranger-on-a-card",
        "a container computes on a GPU of which it was granted nothing, by a descriptor that was passed to it, or because nothing could be denied to it",
        "detected",
        "the driver's list of processes against what the hook granted to the container of each",
        seen=(metric("koordra_gpu_processes"),),
        tests=(
            "tests/unit/kubelet_plugin/sampling/test_sampler.py::test_processes_are_their_containers_and_strangers_are_seen",
        ),
    ),
    Attack(
        "own-mps-server",
        "a tenant runs an MPS server of its own, whose clients go past the limiter",
        "open",
        "NVML charges the server for all its clients and does not say who they are, so its figures condemn nobody where MPS computes; "
        "OutsideLimiter still tells of a process without a slot. Use isolation `mps` or MIG where that matters",
        tests=(
            "tests/unit/limiter/test_reconcile.py::test_what_nvml_charges_an_mps_server_is_nobodys_overuse",
        ),
    ),
    Attack(
        "hook-led-astray",
        "an image makes /etc, its compat folder, ld.so.cache, ld.so.preload or nccl.conf a link out of its root, or exchanges folders for links while "
        "the CDI hook works (CVE-2024-0132, CVE-2025-23359, CVE-2025-23267)",
        "denied",
        "the hook opens everything below the container's root with openat2(RESOLVE_IN_ROOT), replaces files by rename, writes nothing "
        "through a volume, and mounts nothing of the image's",
        tests=(
            "native/test/cdi-hook/test_hostile.c::links_out_of_the_root_stay_in_it_cve_2025_23359",
            "native/test/cdi-hook/test_hostile.c::a_race_wins_nothing_cve_2024_0132",
            "native/test/cdi-hook/test_hostile.c::links_in_place_of_the_files_are_replaced_cve_2025_23267",
            "native/test/cdi-hook/test_hostile.c::a_volume_of_the_pod_is_not_written",
        ),
    ),
    Attack(
        "hook-environment",
        "an image's LD_PRELOAD, which a runtime hands to hooks that have no environment of their own (CVE-2025-23266)",
        "denied",
        "the hook is static and clears its environment, and a claim's spec always writes one",
        tests=("native/test/cdi-hook/test_hostile.c::the_environment_changes_nothing_cve_2025_23266",),
    ),
    Attack(
        "host-root",
        "root on the node: writes CDI files, records, cgroups, or stops the hook for good",
        "open",
        "nothing on a node protects from its root. `koordra_nri_registered` and the DaemonSet's readiness show a missing hook",
        not_run="root needs no attack",
    ),
    Attack(
        "hook-starved",
        "so many containers are created that the runtime's time for the hook (2 s) runs out",
        "detected",
        "after 1.5 s the hook answers with an error, which fails the creation; when even that comes late the container is "
        "created and found (NotAdjusted). p99 is far below: benchmarks/nri_latency.py",
        seen=drift("NotAdjusted")[1:],  # no breach, and nobody's Event
        tests=(
            "tests/unit/nri/test_stub.py::test_a_hanging_handler_fails_closed_and_the_plugin_is_kept",
            "tests/e2e/test_nri_runtimes.py::test_a_hook_that_hangs_is_dropped_and_what_it_missed_is_found",
        ),
    ),
    Attack(
        "connections-to-probes",
        "a pod opens connections to the address of metrics and probes of plugin, hook or controller, says nothing or a byte now and "
        "then, or asks without end, to use up their threads and memory or keep the kubelet's probes from an answer",
        "bounded",
        "their number is bounded, who says nothing makes room, what many ask at once is answered once, and an answer that costs something is "
        "made five times a second",
        seen=(
            metric('koordra_metrics_connections_closed_total{reason="displaced"}'),
            metric('koordra_metrics_connections_closed_total{reason="slow"}'),
        ),
        tests=(
            "tests/unit/test_metrics.py::test_who_opens_connections_and_says_nothing_takes_no_threads_and_no_probes_place",
            "tests/unit/test_metrics.py::test_who_trickles_is_cut_off",
            "tests/unit/test_metrics.py::test_what_many_ask_at_once_is_answered_once_and_nobody_hears_of_before_he_asked",
            "tests/unit/test_metrics.py::test_who_asks_without_end_has_so_many_answers_made_in_a_second",
            "tests/unit/test_metrics.py::test_metrics_over_http_are_made_so_often_and_nobody_is_turned_away",
        ),
    ),
    Attack(
        "metrics-read",
        "a pod reads the metrics of plugin and hook, which answer everybody",
        "open",
        "they say how many containers were refused and by which rule, faults of devices, and of each limited claim, by its namespace, "
        "name, pod and container, what it uses of which card; no nonces, and nothing that a tenant writes. The component "
        "`metrics-policy`, a NetworkPolicy, lets in your monitoring alone, where the network enforces them (docs/metrics.md)",
        tests=(
            "tests/unit/nri/hook/test_plugin.py::test_metrics_name_no_pod_no_claim_and_no_nonce",
            "tests/unit/deploy/test_metrics_page.py::test_the_policy_lets_monitoring_in_and_the_webhooks_callers",
            "tests/unit/limiter/test_report.py::test_figures_carry_the_names_of_claim_pod_and_container",
        ),
    ),
    Attack(
        "log-flood",
        "a container that is refused again and again, with a megabyte in what a refusal quotes",
        "bounded",
        "a line for each of the kubelet's tries, which are ever fewer, of a bounded length; so are all lines and tracebacks",
        tests=(
            "tests/unit/nri/hook/test_plugin.py::test_a_refusal_quotes_no_more_than_a_person_reads",
            "tests/unit/test_logs.py::test_a_tenants_text_fills_no_disk",
            "tests/unit/test_metrics.py::test_a_peer_that_breaks_off_leaves_no_line",
        ),
    ),
    Attack(
        "hook-used-up",
        "variables, claim markers and lists of devices by the ten thousand in each of a node's pods, to use up the hook's time and memory",
        "bounded",
        "lists of devices have a length, markers beyond a thousand are no claim's, and large specs are not kept",
        seen=(refusal("ForeignDeviceNamed"), refusal("UnknownClaim")),
        tests=(
            "tests/unit/nri/hook/test_environment.py::test_a_list_is_compared_up_to_a_length_and_refused_beyond",
            "tests/unit/nri/hook/test_grants.py::test_of_markers_by_the_ten_thousand_some_are_looked_up_and_the_container_is_refused",
            "tests/unit/nri/verify/test_verify.py::test_large_specs_are_looked_at_and_not_kept",
        ),
    ),
)
