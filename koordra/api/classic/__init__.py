"""Older manifests to resource.k8s.io/v1, as `koordra convert` does it. Pure.

`convert`           the whole of it, and pods that refer to claims through `source`; `notes` warnings and
                    refusals
`v1alpha2`          classic DRA: classes, claims and parameters objects (`class_parameters`, `suitable_nodes`)
`nvidia_parameters` claims of NVIDIA's classic driver; `tied_claims` those on the device of another claim
`between_drivers`   claims of v1 between NVIDIA's driver or dranet and koordra, by `driver_words`
`beta_versions`     v1alpha3, v1beta1 and v1beta2, and the type of each of their fields
"""
