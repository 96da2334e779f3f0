"""Legacy pods in the cluster: rewritten as they are created, their templates kept and collected.

    pod ─> /mutate/legacy ─> rewrite (koordra.compat) ─> quota ─> template made ─> gate ─> stored, with
                                                                      │                    koordra.io/asked
    controller:     template gone before the claim was made ──> made again from what the pod carries
                    template that no pod refers to, for some time ──> deleted

    admission    one review, from the pod to the answer; what a replica of the webhook follows for it
    translation  the pod as it is stored; native form
    templates    made sure of, made again, deleted
    settings     what an operator may say
    controller   a leader's loop
    annotations  what the stacks' schedulers wrote on pods, for programs that read it

**Why nothing goes wrong between webhook and controller.** A template is content-addressed: making it twice is
making it once, and a template of that name with other content is a refusal, never used. It is made before the
pod is admitted and never with the pod as its owner, so that it does not matter whether the pod has a name
yet, or is admitted at all. Whoever admits a pod marks the template as used now (annotation, at most once per
half the grace). The controller deletes what no pod refers to and what nobody has marked for the whole grace,
on the condition that the object has not changed since; a mark that comes first makes the deletion fail, one
that comes second finds no template and makes it. And if all that should fail, the pod carries what it asked
for, and the controller makes the template again.

In a dry run nothing is made, marked or reserved.
"""
