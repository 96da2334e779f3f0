"""What-if: what the controller does with the objects of a cluster, and with manifests that were never
applied. `koordra plan` and `koordra explain` tell it.

forecast       the controller's own passes over a copy, until they come to rest
later          when what waits would fit, as claims end
ends           when claims are expected to end: declared, or learned
intake         the objects on their way into its indices, as they are read
cluster_copy   the objects, and where its writes go
admission      manifests as the API server and the webhook would store them, or why they would not
stand_ins      who asks for claims that no pod uses, and other things that were left out
refusals       what kube-scheduler refused lately
"""
