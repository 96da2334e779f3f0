"""A started gang keeps its seats: what a member had is held for the pod that its owner makes instead.

    recorded        the seats of a gang, as they stand in its DeviceHolds, and what becomes of them. Pure
    job_owner       whom the record belongs to, so that it ends with the job
    device_holds    the records: read through the cache, written before anything depends on them

A seat is recorded before its member's gate is lifted, for when the member is lost its claim, and what that
said, goes with it, perhaps while no controller leads. From then on the API alone says what is the gang's.
"""
