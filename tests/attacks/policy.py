"""How a tenant tries to choose what keeps its share of a card, or which network its NIC is on: by anything
that it may write. tests/attacks/test_policy.py."""

from __future__ import annotations

from typing import Final

from tests.attacks.row import Attack, answer, condition, event

ONE_RULE: Final = "the node's policy stands above any claim's word (docs/isolation.md); the claim waits for a node that allows it"
PREPARE: Final = "tests/unit/kubelet_plugin/test_isolation.py"
RESIZES: Final = "tests/unit/reservations/test_resizes.py"
NETWORK: Final = "tests/unit/kubelet_plugin/network/test_network_decision.py"

POLICY: Final = (
    Attack(
        "every-word-of-the-operators",
        "each field that is the operator's, in a claim and in a template: policies of isolation, of a NIC's network all but `interface` "
        "and `mtu`, `fabric`, an IMEX channel",
        "refused",
        "the webhook, by the table of what a claim may say (koordra/api/opaque/authority.py)",
        seen=(answer("is for the operator to say"),),
    ),
    Attack(
        "past-the-webhook",
        "the same while no webhook is there, or in claims from before",
        "denied",
        "koordra's controller reads claims by the same table, and leaves them unplaced",
        seen=(event("ConstraintViolated"),),
    ),
    Attack(
        "past-the-controller",
        "the same where kube-scheduler allocates, which reads no parameters",
        "refused",
        "Prepare reads them by the same table, as a class's where the allocation's `source` says so. kube-scheduler writes that; see "
        "`own-allocation`",
        seen=(answer("is for the operator to say"),),
        tests=(
            "tests/e2e/test_claims_in_pods.py::test_a_claim_says_to_the_node_what_claims_may_say",
            f"{PREPARE}::test_only_a_class_is_believed_what_is_the_operators",
        ),
    ),
    Attack(
        "share-without-limits",
        "`isolation: none` for a share: for all requests, by name, for a subrequest (`gpu/part`), or said beside `limiter`, first or last",
        "denied",
        ONE_RULE,
        seen=(event("BackendUnavailable"),),
    ),
    Attack(
        "spelled-otherwise",
        "the same in other spellings: words in capitals, with blanks, look-alike letters, kinds and versions that do not exist, the "
        "controller's own kind GangMember",
        "refused",
        "what is not exactly one of the words is no word, whoever says it",
        seen=(answer("is not allowed"), answer("there is no kind"), answer("is not a version koordra knows")),
    ),
    Attack(
        "said-twice",
        "two entries for the same requests, the harmless one first",
        "refused",
        "one field cannot have two values for the same requests; where one entry is for all and one by name, admission, allocator and "
        "node take the same (tests/property/test_isolation_policy.py)",
        seen=(answer("say it once"),),
    ),
    Attack(
        "amounts-in-disguise",
        "a share that looks like a whole card, which needs no limits: its memory as 80Gi, 8e10, in bytes, or by another name",
        "denied",
        "what the allocation consumes of the card is compared, as a number",
        seen=(event("BackendUnavailable"),),
    ),
    Attack(
        "resize-beyond-the-class",
        "the annotation `koordra.io/resize` asks for more, or for less, than the class allows, for a policy or priority that it does not "
        "name, or where it allows nothing; or it is no JSON, 8,000 brackets, or of a megabyte",
        "refused",
        "bounds are the class's, as they were when the claim was allocated. The webhook refuses; without it the controller leaves the "
        "share as it is, and says so (`ResizePending`, Infeasible)",
        seen=(event("ResizeRefused"),),
        tests=(f"{RESIZES}::test_what_the_class_does_not_allow_changes_nothing",),
    ),
    Attack(
        "bounds-of-its-own",
        "a claim writes `GpuConfig.resize` itself, where kube-scheduler allocates and the webhook is away",
        "denied",
        "bounds count where the allocation's `source` says FromClass",
        tests=(f"{RESIZES}::test_bounds_that_a_claim_writes_into_its_own_configuration_are_none",),
    ),
    Attack(
        "grow-into-a-neighbour",
        "a claim that runs asks for what others have or wait for, or for what another claim is about to get",
        "denied",
        "what it gets is held first, in a write that counts like an allocation; pods that wait come before, and the node gives no "
        "more than allocation and hold together, whatever else it is told",
        tests=(
            f"{RESIZES}::test_two_claims_cannot_both_grow_by_what_is_left",
            f"{RESIZES}::test_pods_that_wait_come_before_growth",
            "tests/unit/limiter/test_resize.py::test_limits_are_never_above_what_is_held",
            "tests/property/test_resizes.py::test_no_limit_is_above_what_is_held_whatever_happens",
        ),
    ),
    Attack(
        "says-that-it-shrank",
        "a process writes into its region that it acts by a lower limit, and takes more past the limiter",
        "detected",
        "an acknowledgement is the claim's own word, as all of `usage`; what its processes really have is the driver's, and "
        "within 10 s `Limited: False` (OverLimit) says so, as of any share: see `past-the-limiter`",
        seen=(condition("Limited: False"),),
        tests=("tests/unit/limiter/test_resize.py::test_who_only_says_that_it_shrank_is_told_of",),
    ),
    Attack(
        "drawing-past-the-limit",
        "a claim for a share asks for `graphics`, `display`, `ngx` or `all` of the driver, which take memory past a limit",
        "refused",
        "for a limited share only a class gives them. Where the node decides who limits it, the allocator refuses; on the node, Prepare",
        seen=(answer("only a class gives it"), event("BackendUnavailable")),
    ),
    Attack(
        "parameters-of-a-class",
        "a tenant makes ResourceClassParameters, which classes stand on, in its own namespace",
        "refused",
        "RBAC: nobody's but the operator's. A ResourceClass names the namespace that it reads",
        seen=(answer("cannot create resource"),),
    ),
    Attack(
        "class-for-others",
        "a claim names a DeviceClass that the operator made for another tenant, with another network",
        "refused",
        'the policy koordra-class-namespaces, where the class says whose it is: label `koordra.io/restricted: "true"` and annotation '
        "`koordra.io/namespaces`. Other classes are everybody's; isolation stays what the node's policy allows",
        seen=(answer("is not for namespace tenant"),),
    ),
    Attack(
        "legacy-words",
        "a legacy pod's own words on isolation (`nvidia.com/vgpu-mode`, `volcano.sh/vgpu-mode`, "
        "`koordinator.sh/gpu-isolation-provider`), or any other annotation and label of a dialect",
        "denied",
        "they become a claim, which says what claims may say, and is decided like any other",
        tests=("tests/property/test_compat.py::test_any_pod_becomes_a_valid_pod_or_a_message",),
    ),
    Attack(
        "koordinators-label",
        "in Koordinator mode, a pod with a part of a card leaves the label away that asks for HAMi-core, or gives it another value",
        "denied",
        "every part of a card is kept the same way, by the operator's word (`koordra nri --koordinator-isolation`)",
        tests=(
            "tests/unit/nri/hook/test_koordinator.py::test_half_a_card_with_hami_core_whatever_the_pods_label_says",
            "tests/unit/nri/hook/test_koordinator.py::test_where_the_operator_says_so_no_part_of_a_card_is_limited",
        ),
    ),
    Attack(
        "elastic-share",
        "an ElasticGPUClaim for compute alone, whose ResourceClaim asks for no limits",
        "denied",
        ONE_RULE,
        tests=(
            "tests/unit/elastic/test_isolation.py::test_a_share_without_memory_goes_where_the_operator_allows_it",
        ),
    ),
    Attack(
        "extended-resource",
        "a pod asks for an extended resource of a class, for which kube-scheduler makes and allocates the claim, past koordra's admission",
        "denied",
        "such a claim says nothing itself; the node's policy and the class decide in Prepare",
        tests=(f"{PREPARE}::test_a_claim_of_kube_schedulers_is_decided_like_any_other",),
    ),
    Attack(
        "two-allocators",
        "two shares of one card, by two allocators that do not know of each other, of which one is to be without limits",
        "denied",
        "Prepare refuses a share beside one of the other kind, under the node's lock, also while two plugins overlap",
        tests=(
            "tests/property/test_isolation_policy.py::test_two_allocators_that_do_not_know_of_each_other",
            "tests/property/test_isolation_policy.py::test_no_card_has_a_share_with_limits_beside_one_without",
        ),
    ),
    Attack(
        "nic-of-others",
        "`RdmaConfig.mode: Exclusive` with a part of a NIC, where kube-scheduler allocates: the NIC would move into the pod, away from "
        "those who have the rest",
        "refused",
        "the webhook in native mode; on the node, Prepare compares the mode with what was allocated",
        tests=(
            f"{NETWORK}::test_a_part_of_a_nic_is_nobodys_alone",
            "tests/unit/webhook/test_claims.py::test_in_native_mode_a_part_of_a_nic_is_nobodys_alone",
        ),
    ),
    Attack(
        "multus-in-place-of-the-class",
        "the pod's annotation `k8s.v1.cni.cncf.io/networks` names a network that asks for the very NIC whose VLAN or pool its class gives",
        "refused",
        "Prepare: one of the two may decide a NIC's network, and an annotation takes nothing from a class",
        tests=(f"{NETWORK}::test_a_pods_multus_network_takes_nothing_from_its_class",),
    ),
    Attack(
        "attachment-of-its-own",
        "a class names an `attachment` without a namespace, and the tenant writes a NetworkAttachmentDefinition of that name",
        "open",
        "that is what such a class says: the network of this name in each namespace. Who may write NetworkAttachmentDefinitions decides "
        "what runs on the node, with Multus too: name the namespace, or keep the right from tenants",
        tests=(f"{NETWORK}::test_an_attachment_without_a_namespace_is_the_claims",),
    ),
)
