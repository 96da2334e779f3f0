"""Koordinator mode: pods that Koordinator's scheduler placed.

annotation          its device-allocated annotation, as what a container holds, unless the pod has claims of
                    koordra's
admission_policy    the policy that lets nobody but that scheduler set the annotation
"""
