"""Field tables of what surrounds koordra in a cluster: workloads, configuration, RBAC, admission, CRDs
(Kubernetes 1.37).

In the notation of `schema.py`. Parts that nothing here reads (a CRD's OpenAPI schema, IntOrString) are `any`.
"""

from __future__ import annotations

from typing import Final

ADMIN: Final = """
ConfigMap: apiVersion string, kind string, metadata ObjectMeta, binaryData {}string, data {}string, immutable
    bool
Secret: apiVersion string, kind string, metadata ObjectMeta, data {}string, immutable bool, stringData {}string,
    type string
Service: apiVersion string, kind string, metadata ObjectMeta, spec ServiceSpec, status ServiceStatus
EndpointSlice: apiVersion string, kind string, metadata ObjectMeta, addressType! string, endpoints! []Endpoint, ports
    []EndpointPort
Endpoint: addresses! []string, conditions EndpointConditions, deprecatedTopology {}string, hints any, hostname
    string, nodeName string, targetRef any, zone string
EndpointConditions: ready bool, serving bool, terminating bool
EndpointPort: appProtocol string, name string, port int, protocol string
Deployment: apiVersion string, kind string, metadata ObjectMeta, spec! DeploymentSpec, status DeploymentStatus
ReplicaSet: apiVersion string, kind string, metadata ObjectMeta, spec! ReplicaSetSpec, status ReplicaSetStatus
Job: apiVersion string, kind string, metadata ObjectMeta, spec JobSpec, status JobStatus
Scale: apiVersion string, kind string, metadata ObjectMeta, spec ScaleSpec, status ScaleStatus
ScaleSpec: replicas int
ScaleStatus: replicas! int, selector string
StatefulSet: apiVersion string, kind string, metadata ObjectMeta, spec StatefulSetSpec, status
    StatefulSetStatus
ControllerRevision: apiVersion string, kind string, metadata ObjectMeta, data any, revision! int
PriorityClass: apiVersion string, kind string, metadata ObjectMeta, description string, globalDefault bool,
    preemptionPolicy string, value int
ResourceQuota: apiVersion string, kind string, metadata ObjectMeta, spec ResourceQuotaSpec, status
    ResourceQuotaStatus
PersistentVolume: apiVersion string, kind string, metadata ObjectMeta, spec any, status any
PersistentVolumeClaim: apiVersion string, kind string, metadata ObjectMeta, spec PersistentVolumeClaimSpec, status
    PersistentVolumeClaimStatus
Workload: apiVersion string, kind string, metadata ObjectMeta, spec! WorkloadSpec
PodGroup: apiVersion string, kind string, metadata ObjectMeta, spec! PodGroupSpec, status PodGroupStatus
DaemonSet: apiVersion string, kind string, metadata ObjectMeta, spec! DaemonSetSpec, status DaemonSetStatus
ClusterRole: apiVersion string, kind string, metadata ObjectMeta, aggregationRule AggregationRule, rules
    []PolicyRule
ClusterRoleBinding: apiVersion string, kind string, metadata ObjectMeta, roleRef! RoleRef, subjects []Subject
Role: apiVersion string, kind string, metadata ObjectMeta, rules []PolicyRule
RoleBinding: apiVersion string, kind string, metadata ObjectMeta, roleRef! RoleRef, subjects []Subject
ValidatingAdmissionPolicy: apiVersion string, kind string, metadata ObjectMeta, spec
    ValidatingAdmissionPolicySpec, status ValidatingAdmissionPolicyStatus
ValidatingAdmissionPolicyBinding: apiVersion string, kind string, metadata ObjectMeta, spec!
    ValidatingAdmissionPolicyBindingSpec
MutatingWebhookConfiguration: apiVersion string, kind string, metadata ObjectMeta, webhooks
    []MutatingWebhook<name>
ValidatingWebhookConfiguration: apiVersion string, kind string, metadata ObjectMeta, webhooks
    []ValidatingWebhook<name>
CustomResourceDefinition: apiVersion string, kind string, metadata ObjectMeta, spec!
    CustomResourceDefinitionSpec, status CustomResourceDefinitionStatus
PodDisruptionBudget: apiVersion string, kind string, metadata ObjectMeta, spec PodDisruptionBudgetSpec, status
    PodDisruptionBudgetStatus
FlowSchema: apiVersion string, kind string, metadata ObjectMeta, spec FlowSchemaSpec, status any
FlowSchemaSpec: distinguisherMethod any, matchingPrecedence int, priorityLevelConfiguration! any, rules any
PriorityLevelConfiguration: apiVersion string, kind string, metadata ObjectMeta, spec
    PriorityLevelConfigurationSpec, status any
PriorityLevelConfigurationSpec: exempt any, limited any, type! string
TokenRequest: apiVersion string, kind string, metadata ObjectMeta, spec TokenRequestSpec, status
    TokenRequestStatus
ServiceSpec: allocateLoadBalancerNodePorts bool, clusterIP string, clusterIPs []string, externalIPs []string,
    externalName string, externalTrafficPolicy string, healthCheckNodePort int, internalTrafficPolicy string,
    ipFamilies []string, ipFamilyPolicy string, loadBalancerClass string, loadBalancerIP string,
    loadBalancerSourceRanges []string, ports []ServicePort<port>, publishNotReadyAddresses bool, selector
    {}string, sessionAffinity string, sessionAffinityConfig SessionAffinityConfig, trafficDistribution string,
    type string
ServiceStatus: conditions []Condition<type>, loadBalancer LoadBalancerStatus
DeploymentSpec: minReadySeconds int, paused bool, progressDeadlineSeconds int, replicas int,
    revisionHistoryLimit int, selector! LabelSelector, strategy DeploymentStrategy, template! PodTemplateSpec
DeploymentStatus: availableReplicas int, collisionCount int, conditions []DeploymentCondition<type>,
    observedGeneration int, readyReplicas int, replicas int, terminatingReplicas int, unavailableReplicas int,
    updatedReplicas int
ReplicaSetSpec: minReadySeconds int, replicas int, selector! LabelSelector, template PodTemplateSpec
ReplicaSetStatus: availableReplicas int, conditions []ReplicaSetCondition<type>, fullyLabeledReplicas int,
    observedGeneration int, readyReplicas int, replicas! int, terminatingReplicas int
JobSpec: activeDeadlineSeconds int, backoffLimit int, backoffLimitPerIndex int, completionMode string,
    completions int, managedBy string, manualSelector bool, maxFailedIndexes int, parallelism int,
    podFailurePolicy PodFailurePolicy, podReplacementPolicy string, scheduling JobSchedulingConfiguration,
    selector LabelSelector, successPolicy SuccessPolicy, suspend bool, template! PodTemplateSpec,
    ttlSecondsAfterFinished int
JobStatus: active int, completedIndexes string, completionTime time, conditions []JobCondition<type>, failed
    int, failedIndexes string, ready int, startTime time, succeeded int, terminating int,
    uncountedTerminatedPods UncountedTerminatedPods
StatefulSetSpec: minReadySeconds int, ordinals StatefulSetOrdinals, persistentVolumeClaimRetentionPolicy
    StatefulSetPersistentVolumeClaimRetentionPolicy, podManagementPolicy string, replicas int,
    revisionHistoryLimit int, selector! LabelSelector, serviceName string, template! PodTemplateSpec,
    updateStrategy StatefulSetUpdateStrategy, volumeClaimTemplates []PersistentVolumeClaim
StatefulSetStatus: availableReplicas int, collisionCount int, conditions []StatefulSetCondition<type>,
    currentReplicas int, currentRevision string, observedGeneration int, readyReplicas int, replicas! int,
    updateRevision string, updatedReplicas int
StatefulSetOrdinals: start int
StatefulSetPersistentVolumeClaimRetentionPolicy: whenDeleted string, whenScaled string
StatefulSetUpdateStrategy: rollingUpdate RollingUpdateStatefulSetStrategy, type string
RollingUpdateStatefulSetStrategy: maxUnavailable any, partition int
StatefulSetCondition: lastTransitionTime time, message string, reason string, status! string, type! string
ResourceQuotaSpec: hard {}quantity, scopeSelector ScopeSelector, scopes []string
ResourceQuotaStatus: hard {}quantity, used {}quantity
ScopeSelector: matchExpressions []ScopedResourceSelectorRequirement
ScopedResourceSelectorRequirement: operator! string, scopeName! string, values []string
PersistentVolumeClaimSpec: accessModes []string, dataSource any, dataSourceRef any, resources
    VolumeResourceRequirements, selector LabelSelector, storageClassName string, volumeAttributesClassName
    string, volumeMode string, volumeName string
PersistentVolumeClaimStatus: accessModes []string, capacity {}quantity, conditions any, phase string
VolumeResourceRequirements: limits {}quantity, requests {}quantity
WorkloadSpec: controllerRef TypedLocalObjectReference, podGroupTemplates! []PodGroupTemplate(name)
TypedLocalObjectReference: apiGroup string, kind! string, name! string
PodGroupTemplate: disruptionMode string, name! string, priority int, priorityClassName string, resourceClaims
    []PodGroupResourceClaim<name>, schedulingConstraints PodGroupSchedulingConstraints, schedulingPolicy!
    PodGroupSchedulingPolicy
PodGroupSpec: disruptionMode string, podGroupTemplateRef PodGroupTemplateReference, priority int,
    priorityClassName string, resourceClaims []PodGroupResourceClaim<name>, schedulingConstraints
    PodGroupSchedulingConstraints, schedulingPolicy! PodGroupSchedulingPolicy
PodGroupStatus: conditions []Condition<type>, resourceClaimStatuses []PodGroupResourceClaimStatus<name>
PodGroupTemplateReference: workload WorkloadPodGroupTemplateReference
WorkloadPodGroupTemplateReference: podGroupTemplateName! string, workloadName! string
PodGroupResourceClaim: name! string, resourceClaimName string, resourceClaimTemplateName string
PodGroupResourceClaimStatus: name! string, resourceClaimName string
PodGroupSchedulingConstraints: topology []TopologyConstraint
TopologyConstraint: key! string
PodGroupSchedulingPolicy: basic any, gang GangSchedulingPolicy
GangSchedulingPolicy: minCount! int
DaemonSetSpec: minReadySeconds int, revisionHistoryLimit int, selector! LabelSelector, template!
    PodTemplateSpec, updateStrategy DaemonSetUpdateStrategy
DaemonSetStatus: collisionCount int, conditions []DaemonSetCondition<type>, currentNumberScheduled! int,
    desiredNumberScheduled! int, numberAvailable int, numberMisscheduled! int, numberReady! int,
    numberUnavailable int, observedGeneration int, updatedNumberScheduled int
AggregationRule: clusterRoleSelectors []LabelSelector
PolicyRule: apiGroups []string, nonResourceURLs []string, resourceNames []string, resources []string, verbs!
    []string
RoleRef: kind! string, apiGroup string, name! string
Subject: kind! string, apiGroup string, name! string, namespace string
ValidatingAdmissionPolicySpec: auditAnnotations []AuditAnnotation, failurePolicy string, matchConditions
    []MatchCondition<name>, matchConstraints MatchResources, paramKind ParamKind, validations []Validation,
    variables []Variable<name>
ValidatingAdmissionPolicyStatus: conditions []Condition(type), observedGeneration int, typeChecking
    TypeChecking
ValidatingAdmissionPolicyBindingSpec: matchResources MatchResources, paramRef ParamRef, policyName! string,
    validationActions! []string
MutatingWebhook: admissionReviewVersions! []string, clientConfig! WebhookClientConfig, failurePolicy string,
    matchConditions []MatchCondition<name>, matchPolicy string, name! string, namespaceSelector LabelSelector,
    objectSelector LabelSelector, reinvocationPolicy string, rules []RuleWithOperations, sideEffects! string,
    timeoutSeconds int
ValidatingWebhook: admissionReviewVersions! []string, clientConfig! WebhookClientConfig, failurePolicy string,
    matchConditions []MatchCondition<name>, matchPolicy string, name! string, namespaceSelector LabelSelector,
    objectSelector LabelSelector, rules []RuleWithOperations, sideEffects! string, timeoutSeconds int
CustomResourceDefinitionSpec: conversion CustomResourceConversion, group! string, names!
    CustomResourceDefinitionNames, preserveUnknownFields bool, scope! string, versions!
    []CustomResourceDefinitionVersion
CustomResourceDefinitionStatus: acceptedNames CustomResourceDefinitionNames, conditions
    []CustomResourceDefinitionCondition(type), observedGeneration int, storedVersions []string
PodDisruptionBudgetSpec: maxUnavailable any, minAvailable any, selector LabelSelector,
    unhealthyPodEvictionPolicy string
PodDisruptionBudgetStatus: conditions []Condition<type>, currentHealthy int, desiredHealthy int, disruptedPods
    {}time, disruptionsAllowed int, expectedPods int, observedGeneration int
TokenRequestSpec: attestations {}any, audiences []string, boundObjectRef BoundObjectReference,
    expirationSeconds int
TokenRequestStatus: expirationTimestamp time, token string
ServicePort: appProtocol string, name string, nodePort int, port! int, protocol string, targetPort any
SessionAffinityConfig: clientIP ClientIPConfig
LoadBalancerStatus: ingress []LoadBalancerIngress
DeploymentStrategy: rollingUpdate RollingUpdateDeployment, type string
PodTemplateSpec: metadata ObjectMeta, spec PodSpec
DeploymentCondition: lastTransitionTime time, lastUpdateTime time, message string, reason string, status
    string, type string
ReplicaSetCondition: lastTransitionTime time, message string, reason string, status string, type string
PodFailurePolicy: rules! []PodFailurePolicyRule
JobSchedulingConfiguration: disruptionMode alpha3WorkloadPodGroupDisruptionMode, resourceClaims
    []alpha3WorkloadPodGroupResourceClaim, schedulingConstraints alpha3WorkloadPodGroupSchedulingConstraints,
    schedulingPolicy alpha3WorkloadPodGroupSchedulingPolicy
SuccessPolicy: rules! []SuccessPolicyRule
JobCondition: lastProbeTime time, lastTransitionTime time, message string, reason string, status! string,
    type! string
UncountedTerminatedPods: failed []string, succeeded []string
DaemonSetUpdateStrategy: rollingUpdate RollingUpdateDaemonSet, type string
DaemonSetCondition: lastTransitionTime time, message string, reason string, status string, type string
AuditAnnotation: key! string, valueExpression! string
MatchCondition: expression! string, name! string
MatchResources: excludeResourceRules []NamedRuleWithOperations, matchPolicy string, namespaceSelector
    LabelSelector, objectSelector LabelSelector, resourceRules []NamedRuleWithOperations
ParamKind: apiVersion string, kind string
Validation: expression! string, message string, messageExpression string, reason string
Variable: expression! string, name! string
TypeChecking: expressionWarnings []ExpressionWarning
ParamRef: name string, namespace string, parameterNotFoundAction string, selector LabelSelector
WebhookClientConfig: caBundle any, service WebhookServiceReference, url string
RuleWithOperations: apiGroups []string, apiVersions []string, operations []string, resources []string, scope
    string
CustomResourceConversion: strategy! string, webhook WebhookConversion
CustomResourceDefinitionNames: kind! string, categories []string, listKind string, plural! string, shortNames
    []string, singular string
CustomResourceDefinitionVersion: additionalPrinterColumns []CustomResourceColumnDefinition, deprecated bool,
    deprecationWarning string, name! string, schema CustomResourceValidation, selectableFields
    []SelectableField, served! bool, storage! bool, subresources CustomResourceSubresources
CustomResourceDefinitionCondition: lastTransitionTime time, message string, observedGeneration int, reason
    string, status! string, type! string
BoundObjectReference: apiVersion string, kind string, name string, uid string
ClientIPConfig: timeoutSeconds int
LoadBalancerIngress: hostname string, ip string, ipMode string, ports []PortStatus
RollingUpdateDeployment: maxSurge any, maxUnavailable any
PodFailurePolicyRule: action! string, onExitCodes PodFailurePolicyOnExitCodesRequirement, onPodConditions
    []PodFailurePolicyOnPodConditionsPattern
alpha3WorkloadPodGroupDisruptionMode: all {}any, single {}any
alpha3WorkloadPodGroupResourceClaim: name! string, resourceClaimName string, resourceClaimTemplateName string
alpha3WorkloadPodGroupSchedulingConstraints: topology []alpha3TopologyConstraint
alpha3WorkloadPodGroupSchedulingPolicy: basic {}any, gang alpha3WorkloadPodGroupGangSchedulingPolicy
SuccessPolicyRule: succeededCount int, succeededIndexes string
RollingUpdateDaemonSet: maxSurge any, maxUnavailable any
NamedRuleWithOperations: apiGroups []string, apiVersions []string, operations []string, resourceNames
    []string, resources []string, scope string
ExpressionWarning: fieldRef! string, warning! string
WebhookServiceReference: name! string, namespace! string, path string, port int
WebhookConversion: clientConfig ConversionClientConfig, conversionReviewVersions! []string
CustomResourceColumnDefinition: description string, format string, jsonPath! string, name! string, priority
    int, type! string
CustomResourceValidation: openAPIV3Schema any
SelectableField: jsonPath! string
CustomResourceSubresources: scale CustomResourceSubresourceScale, status any
PortStatus: error string, port! int, protocol! string
PodFailurePolicyOnExitCodesRequirement: containerName string, operator! string, values! []int
PodFailurePolicyOnPodConditionsPattern: status string, type! string
alpha3TopologyConstraint: key! string
alpha3WorkloadPodGroupGangSchedulingPolicy: minCount int
ConversionClientConfig: caBundle any, service ApiextensionsV1ServiceReference, url string
CustomResourceSubresourceScale: labelSelectorPath string, specReplicasPath! string, statusReplicasPath! string
ApiextensionsV1ServiceReference: name! string, namespace! string, path string, port int
"""
