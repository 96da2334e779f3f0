"""What somebody with the credentials of koordra's programs on a node, or root on it, tries against the
cluster and its other nodes: tests/attacks/test_node.py."""

from __future__ import annotations

from typing import Final

from tests.attacks.row import Attack, answer, event, log

NODE: Final = (
    Attack(
        "slices-of-another-node",
        "the plugin of one node creates, changes and deletes slices of another, or such as every node has",
        "refused",
        "the policy koordra-own-slices: the token is bound to the plugin's pod, and so to its node",
        seen=(answer("may write slices of that node only"),),
    ),
    Attack(
        "pool-of-another-node",
        "a slice of its own node in the pool of another, at a higher generation, so that the other's devices count no more",
        "refused",
        "the policy koordra-own-slices: the pool is called after the node",
        seen=(answer("of the pool of that name only"),),
    ),
    Attack(
        "slices-of-another-driver",
        "slices of its own node in another driver's name, for claims that ask for that driver",
        "refused",
        "the policy koordra-own-slices",
        seen=(answer("may write slices of driver koordra.io only"),),
    ),
    Attack(
        "token-of-no-node",
        "a token of the plugin's ServiceAccount that no pod has, as whoever may create tokens in koordra-system gets it",
        "refused",
        "the policy koordra-own-slices asks for a token that is bound to a node",
        seen=(answer("is not bound to a node"),),
    ),
    Attack(
        "devices-that-do-not-exist",
        "a node publishes cards that it does not have, and claims are given to it",
        "open",
        "what a node has, only the node can say. Its pods do not start, their owners are told by the kubelet, and the node is the one "
        "that keeps what it is given: drain it (`kubectl cordon`). Claims that name a node, a model or a scope elsewhere stay away",
        seen=(event("Allocated"),),
    ),
    Attack(
        "status-of-other-claims",
        "the plugin and the hook of one node write status.devices of a claim whose devices are on another",
        "refused",
        "the API server (1.36): `associated-node` counts for claims of the token's node",
        seen=(answer('requires resource="resourceclaims/driver"'),),
    ),
    Attack(
        "allocation-by-a-node",
        "the plugin writes the allocation of a claim, so that its node gets it, or frees it",
        "refused",
        "the API server (1.36): nobody but the controller has `resourceclaims/binding`",
        seen=(answer("resourceclaims/binding"),),
    ),
    Attack(
        "pods-of-others",
        "the plugin and the hook of one node delete, evict, change and list pods",
        "refused",
        "RBAC: they read pods one at a time, whose name they know",
        seen=(
            answer("cannot delete resource"),
            answer('cannot create resource "pods/eviction"'),
            answer("cannot list resource"),
        ),
    ),
    Attack(
        "evictions-of-others",
        "a node that may ask for evictions (`kubelet-plugin-evict`, `nri/evict`) asks for pods of other nodes, or in another's name",
        "refused",
        "the controller evicts pods that are on the asking node only, five in ten minutes; which node asks, the policies beside the "
        "ConfigMaps see to",
        seen=(log("eviction_refused"), answer("under its own name only")),
        tests=(
            "tests/unit/controller/test_node_evictions.py::test_a_node_is_believed_only_about_its_own_pods",
            "tests/unit/deploy/test_plugin_eviction.py::test_a_node_asks_under_its_own_name_only",
        ),
    ),
    Attack(
        "controllers-token",
        "a stolen token of the controller changes images, tolerations and labels of pods, taints nodes, allocates devices of other drivers",
        "refused",
        "the policies koordra-controller-pods, -nodes, -claims, -classes and -templates leave it what the controller writes. What is left "
        "is the controller's own power: devices of koordra's, and evictions",
        seen=(
            answer("what a pod runs"),
            answer("a node's spec"),
            answer("devices of koordra.io only"),
        ),
        tests=(
            "tests/unit/deploy/test_write_policies.py::test_nothing_else_of_a_pod",
            "tests/unit/deploy/test_write_policies.py::test_nothing_else_of_a_node",
            "tests/unit/deploy/test_write_policies.py::test_nothing_else_of_a_claim",
        ),
    ),
    Attack(
        "nodes-of-others",
        "the plugin of one node labels, taints or cordons another",
        "refused",
        "RBAC: it reads Nodes. With the component `node-labels` it writes labels of its own, by a policy of that component",
        seen=(answer('cannot patch resource "nodes"'),),
    ),
    Attack(
        "secrets-by-a-node",
        "the plugin reads Secrets, among them the webhook's key, and the controller's Lease",
        "refused",
        "RBAC",
        seen=(answer('resource "secrets"'), answer('resource "leases"')),
    ),
    Attack(
        "forged-calls",
        "who has the plugin's socket, which is the node's root's, asks for claims under other names or uids, of other nodes and drivers, "
        "for such as are gone, again and again",
        "denied",
        "a claim is what the API says of it: another uid is refused, results of other pools and drivers give nothing, and a call that is "
        "repeated gives what it gave",
        tests=(
            "tests/unit/kubelet_plugin/dra/test_forged_calls.py::test_a_claim_that_is_not_the_one_of_the_api_gets_nothing",
            "tests/unit/kubelet_plugin/dra/test_forged_calls.py::test_what_was_allocated_elsewhere_gets_nothing_here",
            "tests/unit/kubelet_plugin/dra/test_forged_calls.py::test_a_call_again_and_again_is_one_prepare",
            "tests/unit/kubelet_plugin/dra/test_forged_calls.py::test_the_same_uid_under_other_names_is_what_the_api_says",
        ),
    ),
    Attack(
        "socket-taken-over",
        "another program puts a socket of its own in the place of the plugin's",
        "repaired",
        "the plugin looks every two seconds whether the file is the one that it bound, and binds again",
        seen=(log("socket_lost"),),
        tests=("tests/unit/kubelet_plugin/dra/test_sockets.py::test_a_lost_socket_is_bound_again",),
    ),
    Attack(
        "passes-for-the-driver",
        "another program registers with the kubelet in koordra's name, by a socket of another name",
        "open",
        "the kubelet calls who registered last, and believes whoever can write to its folder. What it answers are names of CDI devices: "
        "a claim's own come with its nonce, and the hook refuses a container of another namespace (`marker-of-other-namespace`). Pod "
        "Security `baseline` forbids the hostPath volume",
        not_run="who can write there is root on the node: see `host-root`",
    ),
)
