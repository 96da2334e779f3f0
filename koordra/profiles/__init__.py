"""What jobs used of GPUs, processors, memory and RDMA over their lives, in bounded size. Pure,
but for the stores.

    series      what is measured, and in which unit
    summary     one series of one pod: bounded, mergeable, with a stated error
    condensed   ten points in time order, ten deciles, peak and p99 of it
    profile     those of a pod, and of the pods of a job that were made from one template
    template    which pods run the same, so that a job is known when it comes again
    asked       the share of a GPU that a pod asked for, in the words of its user
    share       that, and what would have done, as values
    recommendation   what share would have done
    config_map       by template, as the webhook reads it
    kept        a pod's profile with whose it was, as history keeps it
    store       where that is: `sql_store`, or another package's

A pod's use is the sum over its containers; that of several pods together is that of one of them on average,
and their distribution.
"""
