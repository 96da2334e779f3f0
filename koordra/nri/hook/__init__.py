"""What a container may have, decided while it is created.

plugin               the NRI plugin: looks up what Prepare stored, asks the rules, answers the runtime; passes
                     sandboxes on
adjust               the rules in order: a container in, an Adjustment or a Refusal out (pure)
oci                  containers, devices, device rules, adjustments as small values, from and to NRI messages
grants               which devices a container was really given, by the markers of its CDI edits
environment          its variables: what its devices bring, and what its author wrote about devices
ungranted_access     what another path than a claim brought into it: annotations, mounts, nodes, device rules
validation           the same of what other NRI plugins changed, before the runtime applies it
cgroups              cpusets near its GPUs; rdma.max of its NICs
ledger               what the hook gave to which container, on disk
koordinator/         pods placed by Koordinator's scheduler, served from its annotation
"""
