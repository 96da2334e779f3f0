"""The admission webhook: what users write is checked and completed before it is stored.

    /mutate/claims    /native/mutate/claims      claims and templates: translated for native mode, else left
                                                 alone
    /mutate/pods      /native/mutate/pods        pods with claims of koordra's: the scheduling gate (joint
                                                 mode), suitable nodes
    /validate         /native/validate           claims, templates, DeviceClasses: koordra's opaque
                                                 parameters, precisely

`/native/...` is where the webhook configuration sends namespaces with the label
koordra.io/allocation-mode=native; elsewhere the annotation of that name on a claim, template or pod decides,
and joint is the default.

    keys           X.509, and which certificates there should be now: bootstrap, renewal, the change of
                   authorities. Pure
    review         AdmissionReview in and out
    claims         validation, isolation held against the classes. Pure
    native         translation. Pure
    daemons        containers with several claims by MPS. Pure
    handlers       gates, and the paths together. Pure
    lookups        templates, claims and classes, from watches; a miss asks the server
    server         HTTPS, with connections
    refusal_log    what the log says of refused objects
    cert_rotation  the keys in their Secret, shared by the replicas, or in files that cert-manager keeps;
                   caBundle of the configurations

Pods of other stacks have a path of their own (koordra.controller.legacy); what is served where is put
together in koordra.controller.run. Every replica serves, leader or not. A failing pod webhook is ignored by
the API server (an ungated pod works too); a failing claim webhook refuses, but only claims that carry
parameters of koordra's: no other claim is ever sent here.
"""
