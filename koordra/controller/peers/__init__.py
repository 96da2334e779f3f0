"""Beside the GPU stacks that koordra takes over from.

    annotations  what their schedulers wrote on pods, made from what a pod has of koordra's devices, for programs that read it
    writer       the pods that get them, in the leader's term

None of it is read back: what a pod has is in the status of its claims.
"""
