"""The objects of Kubernetes DRA and of koordra, as frozen values from and to plain dicts.

`names`            every name koordra writes into or reads from the API (driver, attributes, taints, gates,
                   finalizers)
`kinds`            the API resources koordra talks about, with their paths; the versions of resource.k8s.io,
                   and the way to v1
`objects`          small accessors over plain Kubernetes dicts (name, key, uid, owner)
`field_types`      the types of fields as tables, for manifests that no API server has checked
`tables`           tables by key that do not grow for ever
`reader`           typed fields of an object, with errors that name object, field and remedy
`devices`          ResourceSlice, and what it holds: Device, Attribute, Capacity, RequestPolicy, Taint,
                   counters
`claims`           ResourceClaim requests, constraints, tolerations, configuration; DeviceClass
`allocation`       the result that is written to status.allocation
`opaque`           koordra's own opaque parameters, koordra.io/v1alpha1, strictly decoded
`resource_class`   ResourceClass, koordra.io/v1alpha1
`classic`          older manifests (v1alpha1 to v1beta2) to v1
`elastic`          Elastic GPU's classes, claims and pods

Values are read from dicts once, at the border, by functions that raise InvalidManifest naming object and
field.
"""
