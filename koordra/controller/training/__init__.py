"""TrainingJobs, served: the pods of a training job, made, remade and moved, from one template for all
frameworks.

    TrainingJob ──> Service, pods with gang annotations        pods, rendezvous
    pods, claims ──> Member ──> one of six states              members, standing
    standing, what was released before ──> what is done next   decisions
    where a move pays                                          moves
    one pass over all jobs, after any change                   reconcile

It makes plain pods whose gang says the rest: how many start together, where, beside whom, and what is held
for a lost one is decided by gangs (`koordra.controller.gangs`), never here. No claim's status is written.
What a job is, is worked out of its pods and their claims alone, so a controller that is killed between any
two writes is followed by one that goes on from there. Only what has no trace in pods is kept in the job's
status, and is written before what it is about: that it has ended, what was released, and how often it moved.
"""
