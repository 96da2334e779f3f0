"""ResourceQuotas that bound shares of devices: what is over quota is refused when it comes, or waits.

hard: requests.koordra.io/gpu, .../gpu-memory, .../gpu-cores, .../nic, .../nic-share      every claim
      requests.nvidia.com/gpu, limits.nvidia.com/gpumem, ... (names of a dialect)        rewritten pods

admission    a claim, in either mode, or a rewritten pod goes beyond ──> refused (403)
the leader   a pod waits for devices that the controller gives out, and stands beyond ──> no devices
             (QuotaExceeded): what is held and reserved counts too; so do bounds that came later
report       a quota that is gone beyond ──> QuotaExceeded on the ResourceQuota

bounds       quotas, and which pods beyond them get no devices. Pure
claims       what a claim amounts to. Pure
published    the largest card that nodes publish: of what a claim does not say in bytes
usage        what a namespace's claims and rewritten pods add up to
claim_usage  its claims among these
record       what other replicas have let in since
unreviewed   claims that came before there were reviews
webhook      one review
scope        of which namespaces there are reviews
held_seats   what is held for gangs, and reserved
held_back    which pods that wait stand beyond
quotas       what a pass asks
controller   a leader's count
watch        the ResourceQuotas
"""
