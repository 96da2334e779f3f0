"""What somebody who may write pods, claims, templates, ConfigMaps, Secrets and Events in a namespace tries
against the cluster: tests/attacks/test_tenant.py."""

from __future__ import annotations

from typing import Final

from tests.attacks.row import Attack, answer, event, log, metric, taint

SERVER: Final = "the API server's own limit; koordra's reader has the same, for objects that are older"

TENANT: Final = (
    Attack(
        "nested-parentheses",
        "a selector of 44 characters, 40 of them parentheses",
        "bounded",
        "an expression is read once, in steps that its length bounds",
    ),
    Attack(
        "deep-selector", "a selector with 250 levels", "refused", SERVER, seen=(answer("recursion limit"),)
    ),
    Attack(
        "long-selector",
        "a selector of 20 KB",
        "refused",
        SERVER,
        seen=(answer("may not be more than 10240 bytes"),),
    ),
    Attack(
        "costly-selector",
        "six comprehensions inside each other, a million steps for each device",
        "refused",
        "the API server estimates the cost of a selector; koordra makes the same estimate",
        seen=(answer("too complex"),),
    ),
    Attack(
        "costly-pattern",
        "a pattern that makes other engines of regular expressions backtrack, on a text of 9 KB",
        "bounded",
        "patterns are matched by RE2, in linear time",
        seen=(event("SelectorMismatch"),),
    ),
    Attack(
        "impossible-claim",
        "a claim for a million GPUs",
        "bounded",
        "it is counted before anything is searched, told once, and asked again when devices have become free",
        seen=(
            event("ExceedsDevice"),
            metric('koordra_controller_events_total{reason="ExceedsDevice"}'),
        ),
    ),
    Attack(
        "largest-objects",
        "the largest claim, pod and namespace that the API server accepts: requests, alternatives, thousands of affinity terms, chains of "
        "shared claims, thousands of claims that wait",
        "bounded",
        "a pass costs at most a constant times the median, counted in steps, and a namespace has its share of a pass",
        tests=(
            "tests/property/test_largest_objects.py::test_the_largest_costs_a_constant_times_the_median",
            "tests/property/test_pass_cost.py::test_who_waits_costs_nothing_while_nothing_changes_for_him",
            "tests/property/test_pass_cost.py::test_a_namespace_has_its_share_of_a_pass_and_the_others_are_served",
            "tests/property/test_pass_cost.py::test_the_next_pass_follows_at_once_while_some_are_left_over",
            "tests/property/test_pass_cost.py::test_who_is_left_over_is_served_although_everything_is_judged_anew_in_every_pass",
            "tests/property/test_pass_cost.py::test_within_its_share_a_namespace_changes_nothing_about_the_order",
            "tests/property/test_pass_cost.py::test_a_pod_waits_no_longer_once_another_has_other_labels",
        ),
    ),
    Attack(
        "scopes-without-end",
        "a claim of 3 KB with 32 Preferred JointAllocations, of which each may be widened five times: 8 * 10^24 ways; or requests and "
        "constraints of which no placement can be found, and none excluded, without trying millions",
        "bounded",
        "so many ways and placements are tried; then all scopes are widened together, or the claim is undecided and asked again, with twice "
        "as many up to 80,000",
        tests=(
            "tests/property/test_search_cost.py::test_one_claim_costs_a_pass_so_many_steps_and_no_more",
            "tests/property/test_search_cost.py::test_what_is_never_decided_is_asked_with_so_much_at_most_and_owed_by_its_namespace",
            "tests/property/test_search_cost.py::test_what_more_placements_decide_is_placed_once_it_is_asked_again",
            "tests/property/test_search_cost.py::test_of_many_scopes_so_many_ways_are_tried_and_at_last_none_is_asked_for",
        ),
    ),
    Attack(
        "debt-without-end",
        "work that no share of a pass stops once it has begun (one decision, one gang, pods of one claim), in pass after pass",
        "bounded",
        "what a namespace goes beyond its share is taken off its next passes: in the long run it has its share, and nobody waits for it",
        tests=(
            "tests/property/test_pass_cost.py::test_what_a_namespace_went_beyond_its_share_counts_for_its_next_passes",
            "tests/property/test_pass_cost.py::test_passes_for_those_alone_who_owe_a_share_do_not_follow_at_once",
            "tests/property/test_pass_cost.py::test_of_many_pods_that_share_a_claim_each_has_its_turn",
            "tests/property/test_search_cost.py::test_what_is_never_decided_is_asked_with_so_much_at_most_and_owed_by_its_namespace",
        ),
    ),
    Attack(
        "gangs-by-the-hundred",
        "gangs by the hundred of which no two ask the same, or one gang of which no two members do, so that each pass is busy with them",
        "bounded",
        "gangs have their namespace's share of a pass, and one gang so much of it; what was found out is known the next time",
        tests=(
            "tests/property/test_gang_pass_cost.py::test_a_namespace_has_its_share_of_a_pass_with_its_gangs_too",
            "tests/property/test_gang_pass_cost.py::test_gangs_that_wait_cost_nothing_while_nothing_changes_for_them",
            "tests/property/test_gang_pass_cost.py::test_one_gang_that_costs_too_much_is_undecided_and_goes_on",
            "tests/property/test_gang_pass_cost.py::test_a_gangs_selectors_cost_a_pass_so_much_and_no_more",
            "tests/property/test_largest_objects.py::test_the_largest_costs_a_constant_times_the_median",
        ),
    ),
    Attack(
        "gang-that-keeps-nodes-free",
        "a gang as large as the cluster that waits for a pod of its own that never ends, so that all nodes are kept free for it, and another "
        "one for when its time is over",
        "bounded",
        "20 minutes; then its namespace's gangs rest, twice as long each time, all gangs rest for 5 minutes, and those of others have their turn",
        tests=(
            "tests/unit/controller/test_reservations_of_namespaces.py::test_gangs_of_one_namespace_do_not_keep_anothers_waiting_for_ever",
            "tests/unit/controller/test_reservations_of_namespaces.py::test_a_namespace_whose_gangs_never_start_keeps_nodes_free_for_ever_less",
            "tests/unit/controller/test_reservations_of_namespaces.py::test_between_two_that_wait_in_vain_the_nodes_are_everybodys_for_a_while",
            "tests/unit/controller/test_reservations_of_namespaces.py::test_a_gang_that_is_taken_away_before_its_time_is_over_was_in_vain_too",
        ),
    ),
    Attack(
        "joint-taint",
        "a request tolerates koordra.io/joint, or every taint, so that kube-scheduler gives out cards that koordra's controller gives "
        "out as well",
        "refused",
        "the policy koordra-joint-taint, and the selector of each class, which no device of joint mode meets",
        seen=(answer("tolerates one of the taints koordra.io/joint"),),
    ),
    Attack(
        "held-device",
        "a request tolerates koordra.io/held, for a card that the node still uses for somebody else's claim, or koordra.io/driver-release, "
        "so that its pod comes back to a card whose driver is to be free, and is evicted, every ten seconds",
        "refused",
        "the policy koordra-joint-taint; and no toleration counts against these taints",
        seen=(answer("koordra.io/held, koordra.io/driver-release"),),
    ),
    Attack(
        "admin-access",
        "a request with adminAccess, which counts nobody's share",
        "refused",
        "the API server: the namespace lacks the label resource.kubernetes.io/admin-access",
        seen=(answer("admin access to devices requires"),),
    ),
    Attack(
        "own-policy",
        "GpuConfig.allowedIsolation in a claim, to allow what the operator does not",
        "refused",
        "the webhook: classes and nodes say it",
        seen=(
            answer("is for the operator to say"),
            metric('koordra_webhook_requests_total{outcome="refused",path="/validate"}'),
        ),
    ),
    Attack(
        "network-of-others",
        "RdmaConfig.network in a claim: vlan, pkey, guid, addresses, attachment",
        "refused",
        "the webhook: a class's to give",
        seen=(answer("is for the operator to say"),),
    ),
    Attack(
        "immediate-by-annotation",
        "a claim, on creation or afterwards, or a template says koordra.io/allocation-mode: Immediate, so that it has devices without a pod",
        "refused",
        'the policy koordra-immediate: it needs the verb "hold" on allocations; where it is not installed, the controller does not obey',
        seen=(answer('the verb "hold"'), answer("made from a template has its pod")),
    ),
    Attack(
        "forged-retain",
        "a claim has the finalizer koordra.io/retain, or the annotations of ElasticGPUClaims that retain, so that it keeps its devices "
        "between pods",
        "refused",
        "the policy koordra-immediate",
        seen=(answer("are written by koordra's controller only"),),
    ),
    Attack(
        "held-without-a-pod",
        "devices kept by more Immediate claims than the operator means, by a claim whose owner is a pod that does not use it, by a pod "
        "behind a gate of its author's, or by a claim that is deleted and has no builtin finalizer",
        "bounded",
        "so many devices of a namespace, which give way to pods that wait; and what no pod can use is given back",
        tests=(
            "tests/unit/controller/test_immediate_claims.py::test_a_namespace_has_so_many_devices_and_the_others_wait_for_a_pod",
            "tests/unit/controller/test_immediate_claims.py::test_devices_that_no_pod_uses_give_way_the_newest_first_and_come_back_last",
            "tests/unit/controller/test_immediate_claims.py::test_a_living_owner_that_does_not_use_a_claim_keeps_nothing",
            "tests/unit/controller/test_immediate_claims.py::test_a_pod_that_its_author_holds_keeps_no_devices",
        ),
    ),
    Attack(
        "claims-that-teach",
        "claims by the hundred that are never used, so that the controller learns from them where to place those of others",
        "denied",
        "it learns from pods that ran, and no namespace counts for more than all others together",
        tests=(
            "tests/unit/controller/test_learning_from_pods.py::test_claims_made_by_the_hundred_and_taken_away_teach_nothing",
            "tests/unit/controller/test_learning_from_pods.py::test_no_namespace_counts_for_more_than_all_others_together",
        ),
    ),
    Attack(
        "parameters-of-another-driver",
        "opaque parameters of koordra's kind, under another driver's name",
        "denied",
        "nobody reads them; the claim is placed as if they were not there",
    ),
    Attack(
        "classes-of-its-own",
        "a tenant makes a DeviceClass or ResourceClass, whose configuration stands above the claim's",
        "refused",
        "RBAC: they belong to the cluster",
        seen=(answer("cannot create resource"),),
    ),
    Attack(
        "controllers-tables",
        "ConfigMaps of the names that koordra uses, in the tenant's namespace",
        "denied",
        "koordra reads those of its own namespace only",
    ),
    Attack(
        "own-allocation",
        "a tenant writes status.allocation, reservedFor or the conditions of status.devices of its claim",
        "refused",
        "RBAC: `resourceclaims/status` is another resource, and 1.36 asks for `resourceclaims/binding` besides",
        seen=(answer('cannot patch resource "resourceclaims/status"'),),
    ),
    Attack(
        "lifted-gate",
        "a tenant removes the gate koordra.io/joint-allocation of a pod that waits",
        "refused",
        "the policy koordra-gate",
        seen=(answer("is lifted by koordra's controller"),),
    ),
    Attack(
        "forged-decision",
        "a pod with annotations of gate.koordra.io, by which the controller knows what it has decided",
        "refused",
        "the policy koordra-gate",
        seen=(answer("are written by koordra's controller only"),),
    ),
    Attack(
        "forged-allocation",
        "a pod with the annotations by which Koordinator's and HAMi's schedulers tell the node what a pod has",
        "denied",
        "koordra reads them only where the operator turned Koordinator mode on, whose policy keeps tenants from writing them",
    ),
    Attack(
        "bound-by-hand",
        "a pod that names its node itself, past the scheduler and its gate, with a claim",
        "bounded",
        "the claim gets devices of that node that nobody has, or the pod never starts",
    ),
    Attack(
        "finalizer-taken-away",
        "a tenant deletes a claim under its running pod and takes its finalizers away",
        "detected",
        "the node knows that the devices are in use: they carry the taint koordra.io/held, which nobody can tolerate, until the "
        "pod has ended",
        seen=(taint("koordra.io/held"),),
        tests=(
            "tests/unit/kubelet_plugin/publish/test_node_slices.py::test_a_force_deleted_claim_is_held_until_the_kubelet_gives_it_back",
            "tests/unit/kubelet_plugin/prepare/test_node_life.py::test_a_refusal_shows_that_a_device_is_held",
        ),
    ),
    Attack(
        "gang-that-never-starts",
        "members of a gang of which more are asked for than there will ever be",
        "bounded",
        "a gang holds devices once all of it fits, within one pass",
        seen=(event("GangGathering"),),
    ),
    Attack(
        "gang-of-others",
        "a pod says that it belongs to the gang of another namespace",
        "denied",
        "a gang's name is looked up in the pod's own namespace",
        seen=(event("GangGathering"),),
    ),
    Attack(
        "escape-sequences",
        "control characters and such as turn the direction of writing, in opaque parameters, annotations and selectors",
        "refused",
        "what is printed from objects is escaped, once, wherever it leaves koordra (koordra/inert.py)",
        seen=(answer("\\x1b[2J"),),
    ),
    Attack(
        "event-flood",
        "a pod and a claim that cannot be placed are changed hundreds of times",
        "bounded",
        "one Event for an object and a reason, whose count goes up, after pauses that double",
        seen=(event("ExceedsDevice"),),
    ),
    Attack(
        "refusal-flood",
        "objects that are refused, by the thousand, each with hundreds of problems: nothing is stored that a quota counts, and the log "
        "of the webhook turns over",
        "bounded",
        "20 lines a minute for a namespace, of 1,024 characters; the next one says how many more were refused",
        seen=(log("admission_refused"),),
    ),
    Attack(
        "label-values",
        "many objects of odd names, so that metrics get a sample of each",
        "bounded",
        "labels of metrics have few values: reasons, paths, kinds; never a tenant's words",
    ),
    Attack(
        "metrics-of-the-controller",
        "a pod reads the controller's metrics, which answer everybody, to learn what others ask for",
        "denied",
        "they say what nodes have and what is free, and how many wait for which reason; no namespace, pod, claim, class or user is named. Of "
        "plugin and hook: see `metrics-read`",
    ),
    Attack(
        "deep-parameters",
        "opaque parameters of 10 KiB of brackets, 5,000 levels deep, which the API server takes, and Python's decoder does not",
        "refused",
        "what lies deeper than 200 levels is cut out before an object is read, and parameters deeper than 100 are refused; the "
        "other objects of the list are read",
        seen=(event("ConstraintViolated"), log("answer_nested_too_deeply")),
        tests=(
            "tests/unit/controller/test_deep_objects.py::test_a_deep_claim_is_refused_in_words_and_the_others_are_served",
            "tests/unit/kube/test_watch_defects.py::test_a_page_with_an_object_that_is_nested_too_deeply_is_read",
        ),
    ),
    Attack(
        "webhook-connections",
        "more connections to the webhook than it serves, each saying nothing, or a byte now and then",
        "bounded",
        "their number is bounded, and a peer that does not go on is sent away (docs/controller.md)",
        seen=(metric('koordra_webhook_connections_closed_total{reason="slow"}'),),
        tests=(
            "tests/unit/webhook/test_server.py::test_a_peer_that_trickles_is_cut_off",
            "tests/unit/webhook/test_server.py::test_at_the_cap_those_go_that_never_asked",
            "tests/unit/webhook/test_server.py::test_connections_by_the_clock",
        ),
    ),
    Attack(
        "webhook-bodies",
        "a body without length, of 9 MB, or of 100,000 brackets",
        "refused",
        "read up to 8 MiB, whose length is said before; what is no review is answered 400",
        seen=(answer("400"), answer("411"), answer("413")),
    ),
)
