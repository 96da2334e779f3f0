"""Field tables of the core, coordination and events kinds that the development cluster serves (Kubernetes
1.37).

In the notation of `schema.py`. Volume sources are left open (`any`): nothing here reads them.
"""

from __future__ import annotations

from typing import Final

CORE: Final = """
Namespace: apiVersion string, kind string, metadata ObjectMeta, spec NamespaceSpec, status NamespaceStatus
ObjectMeta: annotations {}string, creationTimestamp time, deletionGracePeriodSeconds int,
    deletionTimestamp time, finalizers []string<>, generateName string, generation int, labels {}string,
    managedFields []ManagedFieldsEntry, name string, namespace string, ownerReferences []OwnerReference<uid>,
    resourceVersion string, selfLink string, uid string
ManagedFieldsEntry: apiVersion string, fieldsType string, fieldsV1 any, manager string, operation string,
    subresource string, time time
OwnerReference: apiVersion! string, blockOwnerDeletion bool, controller bool, kind! string, name! string,
    uid! string
NamespaceSpec: finalizers []string
NamespaceStatus: conditions []NamespaceCondition<type>, phase string
NamespaceCondition: lastTransitionTime time, message string, reason string, status! string, type! string
Node: apiVersion string, kind string, metadata ObjectMeta, spec NodeSpec, status NodeStatus
NodeSpec: configSource NodeConfigSource, externalID string, podCIDR string, podCIDRs []string<>,
    podPreemptionPolicy NodePodPreemptionPolicy, providerID string, taints []Taint, unschedulable bool
NodeConfigSource: configMap ConfigMapNodeConfigSource
ConfigMapNodeConfigSource: kubeletConfigKey! string, name! string, namespace! string, resourceVersion string,
    uid string
NodePodPreemptionPolicy: disableResizePreemption []string
Taint: effect! string, key! string, timeAdded time, value string
NodeStatus: addresses []NodeAddress<type>, allocatable {}quantity, capacity {}quantity,
    conditions []NodeCondition<type>, config NodeConfigStatus, daemonEndpoints NodeDaemonEndpoints,
    declaredFeatures []string, features NodeFeatures, images []ContainerImage, nodeInfo NodeSystemInfo,
    phase string, runtimeHandlers []NodeRuntimeHandler, volumesAttached []AttachedVolume,
    volumesInUse []string
NodeAddress: address! string, type! string
NodeCondition: lastHeartbeatTime time, lastTransitionTime time, message string, reason string, status! string,
    type! string
NodeConfigStatus: active NodeConfigSource, assigned NodeConfigSource, error string,
    lastKnownGood NodeConfigSource
NodeDaemonEndpoints: kubeletEndpoint DaemonEndpoint
DaemonEndpoint: Port! int
NodeFeatures: supplementalGroupsPolicy bool
ContainerImage: names []string, sizeBytes int
NodeSystemInfo: architecture! string, bootID! string, containerRuntimeVersion! string, kernelVersion! string,
    kubeProxyVersion! string, kubeletVersion! string, machineID! string, operatingSystem! string,
    osImage! string, runningInUserNamespace bool, swap NodeSwapStatus, systemUUID! string
NodeSwapStatus: capacity int
NodeRuntimeHandler: features NodeRuntimeHandlerFeatures, name string
NodeRuntimeHandlerFeatures: recursiveReadOnlyMounts bool, userNamespaces bool
AttachedVolume: devicePath! string, name! string
Pod: apiVersion string, kind string, metadata ObjectMeta, spec PodSpec, status PodStatus
PodSpec: activeDeadlineSeconds int, affinity Affinity, automountServiceAccountToken bool,
    containers! []Container<name>, dnsConfig PodDNSConfig, dnsPolicy string, enableServiceLinks bool,
    ephemeralContainers []EphemeralContainer<name>, evictionResponders []EvictionResponder,
    hostAliases []HostAlias<ip>, hostIPC bool, hostNetwork bool, hostPID bool, hostUsers bool,
    hostname string, hostnameOverride string, imagePullSecrets []LocalObjectReference<name>,
    initContainers []Container<name>, nodeName string, nodeSelector {}string, os PodOS, overhead {}quantity,
    preemptionPolicy string, priority int, priorityClassName string, readinessGates []PodReadinessGate,
    resourceClaims []PodResourceClaim<name>, resources ResourceRequirements, restartPolicy string,
    runtimeClassName string, schedulerName string, schedulingGates []PodSchedulingGate<name>,
    schedulingGroup PodSchedulingGroup, securityContext PodSecurityContext, serviceAccount string,
    serviceAccountName string, setHostnameAsFQDN bool, shareProcessNamespace bool, subdomain string,
    terminationGracePeriodSeconds int, tolerations []Toleration,
    topologySpreadConstraints []TopologySpreadConstraint<topologyKey>, volumes []Volume<name>
Affinity: nodeAffinity NodeAffinity, podAffinity PodAffinity, podAntiAffinity PodAntiAffinity
NodeAffinity: preferredDuringSchedulingIgnoredDuringExecution []PreferredSchedulingTerm,
    requiredDuringSchedulingIgnoredDuringExecution NodeSelector
PreferredSchedulingTerm: preference! NodeSelectorTerm, weight! int
NodeSelectorTerm: matchExpressions []NodeSelectorRequirement, matchFields []NodeSelectorRequirement
NodeSelectorRequirement: key! string, operator! string, values []string
NodeSelector: nodeSelectorTerms! []NodeSelectorTerm
PodAffinity: preferredDuringSchedulingIgnoredDuringExecution []WeightedPodAffinityTerm,
    requiredDuringSchedulingIgnoredDuringExecution []PodAffinityTerm
WeightedPodAffinityTerm: podAffinityTerm! PodAffinityTerm, weight! int
PodAffinityTerm: labelSelector LabelSelector, matchLabelKeys []string, mismatchLabelKeys []string,
    namespaceSelector LabelSelector, namespaces []string, topologyKey! string
LabelSelector: matchExpressions []LabelSelectorRequirement, matchLabels {}string
LabelSelectorRequirement: key! string, operator! string, values []string
PodAntiAffinity: preferredDuringSchedulingIgnoredDuringExecution []WeightedPodAffinityTerm,
    requiredDuringSchedulingIgnoredDuringExecution []PodAffinityTerm
Container: args []string, command []string, env []EnvVar<name>, envFrom []EnvFromSource, image string,
    imagePullPolicy string, lifecycle Lifecycle, livenessProbe Probe, name! string,
    ports []ContainerPort<containerPort>, readinessProbe Probe,
    resizePolicy []ContainerResizePolicy(resourceName), resources ResourceRequirements, restartPolicy string,
    restartPolicyRules []ContainerRestartRule, securityContext SecurityContext, startupProbe Probe,
    stdin bool, stdinOnce bool, terminationMessagePath string, terminationMessagePolicy string, tty bool,
    volumeDevices []VolumeDevice<devicePath>, volumeMounts []VolumeMount<mountPath>, workingDir string
EnvVar: name! string, value string, valueFrom EnvVarSource
EnvVarSource: configMapKeyRef ConfigMapKeySelector, fieldRef ObjectFieldSelector, fileKeyRef FileKeySelector,
    resourceFieldRef ResourceFieldSelector, secretKeyRef SecretKeySelector
ConfigMapKeySelector: key! string, name string, optional bool
ObjectFieldSelector: apiVersion string, fieldPath! string
FileKeySelector: key! string, optional bool, path! string, volumeName! string
ResourceFieldSelector: containerName string, divisor quantity, resource! string
SecretKeySelector: key! string, name string, optional bool
EnvFromSource: configMapRef ConfigMapEnvSource, prefix string, secretRef SecretEnvSource
ConfigMapEnvSource: name string, optional bool
SecretEnvSource: name string, optional bool
Lifecycle: postStart LifecycleHandler, preStop LifecycleHandler, stopSignal string
LifecycleHandler: exec ExecAction, httpGet HTTPGetAction, sleep SleepAction, tcpSocket TCPSocketAction
ExecAction: command []string
HTTPGetAction: host string, httpHeaders []HTTPHeader, path string, port! any, protocol string, scheme string
HTTPHeader: name! string, value! string
SleepAction: seconds! int
TCPSocketAction: host string, port! any
Probe: exec ExecAction, failureThreshold int, grpc GRPCAction, httpGet HTTPGetAction, initialDelaySeconds int,
    periodSeconds int, successThreshold int, tcpSocket TCPSocketAction, terminationGracePeriodSeconds int,
    timeoutSeconds int
GRPCAction: mode string, port! int, service string
ContainerPort: containerPort! int, hostIP string, hostPort int, name string, protocol string
ContainerResizePolicy: resourceName! string, restartPolicy! string
ResourceRequirements: claims []ContainerClaim(name,request), limits {}quantity, requests {}quantity
ContainerClaim: name! string, request string
ContainerRestartRule: action! string, exitCodes ContainerRestartRuleOnExitCodes
ContainerRestartRuleOnExitCodes: operator! string, values []int
SecurityContext: allowPrivilegeEscalation bool, appArmorProfile AppArmorProfile, capabilities Capabilities,
    privileged bool, procMount string, readOnlyRootFilesystem bool, runAsGroup int, runAsNonRoot bool,
    runAsUser int, seLinuxOptions SELinuxOptions, seccompProfile SeccompProfile,
    windowsOptions WindowsSecurityContextOptions
AppArmorProfile: localhostProfile string, type! string
Capabilities: add []string, drop []string
SELinuxOptions: level string, role string, type string, user string
SeccompProfile: localhostProfile string, type! string
WindowsSecurityContextOptions: gmsaCredentialSpec string, gmsaCredentialSpecName string, hostProcess bool,
    runAsUserName string
VolumeDevice: devicePath! string, name! string
VolumeMount: bindMountOptions []string, mountPath! string, mountPropagation string, name! string,
    readOnly bool, recursiveReadOnly string, subPath string, subPathExpr string
PodDNSConfig: nameservers []string, options []PodDNSConfigOption, searches []string
PodDNSConfigOption: name string, value string
EphemeralContainer: args []string, command []string, env []EnvVar<name>, envFrom []EnvFromSource,
    image string, imagePullPolicy string, lifecycle Lifecycle, livenessProbe Probe, name! string,
    ports []ContainerPort<containerPort>, readinessProbe Probe, resizePolicy []ContainerResizePolicy,
    resources ResourceRequirements, restartPolicy string, restartPolicyRules []ContainerRestartRule,
    securityContext SecurityContext, startupProbe Probe, stdin bool, stdinOnce bool,
    targetContainerName string, terminationMessagePath string, terminationMessagePolicy string, tty bool,
    volumeDevices []VolumeDevice<devicePath>, volumeMounts []VolumeMount<mountPath>, workingDir string
EvictionResponder: name! string, priority! int
HostAlias: hostnames []string, ip! string
LocalObjectReference: name string
PodOS: name! string
PodReadinessGate: conditionType! string
PodResourceClaim: name! string, resourceClaimName string, resourceClaimTemplateName string
PodSchedulingGate: name! string
PodSchedulingGroup: podGroupName string
PodSecurityContext: appArmorProfile AppArmorProfile, fsGroup int, fsGroupChangePolicy string, runAsGroup int,
    runAsNonRoot bool, runAsUser int, seLinuxChangePolicy string, seLinuxOptions SELinuxOptions,
    seccompProfile SeccompProfile, supplementalGroups []int, supplementalGroupsPolicy string,
    sysctls []Sysctl, windowsOptions WindowsSecurityContextOptions
Sysctl: name! string, value! string
Toleration: effect string, key string, operator string, tolerationSeconds int, value string
TopologySpreadConstraint: labelSelector LabelSelector, matchLabelKeys []string, maxSkew! int, minDomains int,
    nodeAffinityPolicy string, nodeTaintsPolicy string, topologyKey! string, whenUnsatisfiable! string
Volume: awsElasticBlockStore any, azureDisk any, azureFile any, cephfs any, cinder any, configMap any,
    csi any, downwardAPI any, emptyDir any, ephemeral any, fc any, flexVolume any, flocker any,
    gcePersistentDisk any, gitRepo any, glusterfs any, hostPath any, image any, iscsi any, name! string,
    nfs any, persistentVolumeClaim any, photonPersistentDisk any, portworxVolume any, projected any,
    quobyte any, rbd any, scaleIO any, secret any, storageos any, vsphereVolume any
PodStatus: allocatedResources {}quantity, conditions []PodCondition<type>,
    containerStatuses []ContainerStatus, ephemeralContainerStatuses []ContainerStatus,
    extendedResourceClaimStatus PodExtendedResourceClaimStatus, hostIP string, hostIPs []HostIP<ip>,
    initContainerStatuses []ContainerStatus, message string,
    nodeAllocatableResourceClaimStatuses []NodeAllocatableResourceClaimStatus, nominatedNodeName string,
    observedGeneration int, phase string, podIP string, podIPs []PodIP<ip>, qosClass string, reason string,
    resize string, resourceClaimStatuses []PodResourceClaimStatus<name>, resources ResourceRequirements,
    startTime time, volumeHealth []PodVolumeHealth
PodCondition: lastProbeTime time, lastTransitionTime time, message string, observedGeneration int,
    reason string, status! string, type! string
ContainerStatus: allocatedResources {}quantity, allocatedResourcesStatus []ResourceStatus, containerID string,
    image! string, imageID! string, lastState ContainerState, name! string, ready! bool,
    resources ResourceRequirements, restartCount! int, started bool, state ContainerState, stopSignal string,
    user ContainerUser, volumeMounts []VolumeMountStatus
ResourceStatus: name! string, resources []ResourceHealth
ResourceHealth: health string, message string, resourceID! string
ContainerState: running ContainerStateRunning, terminated ContainerStateTerminated,
    waiting ContainerStateWaiting
ContainerStateRunning: startedAt time
ContainerStateTerminated: containerID string, exitCode! int, finishedAt time, message string, reason string,
    signal int, startedAt time
ContainerStateWaiting: message string, reason string
ContainerUser: linux LinuxContainerUser
LinuxContainerUser: gid! int, supplementalGroups []int, uid! int
VolumeMountStatus: mountPath! string, name! string, readOnly bool, recursiveReadOnly string,
    volumeStatus VolumeStatus
VolumeStatus: image ImageVolumeStatus
ImageVolumeStatus: imageRef! string
PodExtendedResourceClaimStatus: requestMappings! []ContainerExtendedResourceRequest, resourceClaimName! string
ContainerExtendedResourceRequest: containerName! string, requestName! string, resourceName! string
HostIP: ip! string
NodeAllocatableResourceClaimStatus: containers []string, mapping []NodeAllocatableMappedResources,
    overhead []NodeAllocatableOverheadResources, resourceClaimName! string
NodeAllocatableMappedResources: name! string, quantity! quantity
NodeAllocatableOverheadResources: name! string, perContainer quantity, perPod quantity
PodIP: ip! string
PodResourceClaimStatus: name! string, resourceClaimName string
PodVolumeHealth: healthConditions []VolumeHealthCondition, lastTransitionTime time, name! string
VolumeHealthCondition: message string, reason! string, status! string
Event: apiVersion string, kind string, metadata! ObjectMeta, action string, count int, eventTime microtime,
    firstTimestamp time, involvedObject! ObjectReference, lastTimestamp time, message string, reason string,
    related ObjectReference, reportingComponent string, reportingInstance string, series EventSeries,
    source EventSource, type string
ObjectReference: apiVersion string, kind string, fieldPath string, name string, namespace string,
    resourceVersion string, uid string
EventSeries: count int, lastObservedTime microtime
EventSource: component string, host string
EventsEvent: apiVersion string, kind string, metadata ObjectMeta, action string, deprecatedCount int,
    deprecatedFirstTimestamp time, deprecatedLastTimestamp time, deprecatedSource EventSource,
    eventTime! microtime, note string, reason string, regarding ObjectReference, related ObjectReference,
    reportingController string, reportingInstance string, series EventsEventSeries, type string
EventsEventSeries: count! int, lastObservedTime! microtime
ServiceAccount: apiVersion string, kind string, metadata ObjectMeta, automountServiceAccountToken bool,
    imagePullSecrets []LocalObjectReference, secrets []ObjectReference<name>
Binding: apiVersion string, kind string, metadata ObjectMeta, target! ObjectReference
Eviction: apiVersion string, kind string, metadata ObjectMeta, deleteOptions DeleteOptions
DeleteOptions: apiVersion string, kind string, dryRun []string, gracePeriodSeconds int,
    ignoreStoreReadErrorWithClusterBreakingPotential bool, orphanDependents bool, preconditions Preconditions,
    propagationPolicy string
Preconditions: resourceVersion string, uid string
Lease: apiVersion string, kind string, metadata ObjectMeta, spec LeaseSpec
LeaseSpec: acquireTime microtime, holderIdentity string, leaseDurationSeconds int, leaseTransitions int,
    preferredHolder string, renewTime microtime, strategy string
"""
