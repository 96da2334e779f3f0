"""Beside the GPU stacks that koordra takes over from.

    held          what a pod has of koordra's devices
    annotations   what their schedulers wrote on pods, made from what koordra allocated, for programs that read it
    writing       the pods that get them, in the leader's term
    foreign       nodes on which another device plugin or driver gives out the same cards

None of it is read back: what a pod has is in the status of its claims.
"""
