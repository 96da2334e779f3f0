{{/*
What kustomize does with deploy/kustomize, as far as that uses it: resources, components, and JSON 6902 patches (add, replace, remove,
test). The folders are the chart's files, so that Helm and kustomize install the same, said once. A test compares what both render.
*/}}

{{/* A folder's objects into .objects, by "KIND NAMESPACE/NAME". .root: the chart's scope. */}}
{{- define "koordra.accumulate" -}}
{{- $scope := . -}}
{{- $text := .root.Files.Get (printf "files/kustomize/%s/kustomization.yaml" .folder) -}}
{{- if not $text }}{{ fail (printf "there is no component %s" .folder) }}{{ end -}}
{{- $kustomization := fromYaml $text -}}
{{- range $kustomization.resources -}}
{{- if hasSuffix ".yaml" . -}}
{{- range regexSplit "(?m)^---\\s*$" ($scope.root.Files.Get (printf "files/kustomize/%s/%s" $scope.folder .)) -1 -}}
{{- $object := fromYaml . -}}
{{- if $object -}}
{{- $name := printf "%s %s/%s" $object.kind ($object.metadata.namespace | default "") $object.metadata.name -}}
{{- if hasKey $scope.objects $name }}{{ fail (printf "component %s brings %s, which another one has brought: leave one of them out" $scope.folder $name) }}{{ end -}}
{{- $_ := set $scope.objects $name $object -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- include "koordra.accumulate" (dict "root" $scope.root "folder" (clean (printf "%s/%s" $scope.folder .)) "objects" $scope.objects) -}}
{{- end -}}
{{- end -}}
{{- range $kustomization.components -}}
{{- include "koordra.accumulate" (dict "root" $scope.root "folder" (clean (printf "%s/%s" $scope.folder .)) "objects" $scope.objects) -}}
{{- end -}}
{{- range $patch := $kustomization.patches -}}
{{- $target := $patch.target -}}
{{- range $name, $object := $scope.objects -}}
{{- $is := regexMatch (printf "^(%s)$" $target.name) $object.metadata.name -}}
{{- if $target.kind }}{{ $is = and $is (eq $target.kind $object.kind) }}{{ end -}}
{{- if $target.group }}{{ $is = and $is (hasPrefix (printf "%s/" $target.group) $object.apiVersion) }}{{ end -}}
{{- if $is -}}
{{- range fromYamlArray $patch.patch -}}
{{- include "koordra.step" (dict "step" . "object" $object "name" $name "folder" $scope.folder) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* One step of a patch on .object, in place. */}}
{{- define "koordra.step" -}}
{{- $at := .object }}{{ $above := dict }}{{ $key := "" -}}
{{- $parts := splitList "/" (trimPrefix "/" .step.path) -}}
{{- $last := last $parts | replace "~1" "/" | replace "~0" "~" -}}
{{- range initial $parts -}}
{{- $above = $at }}{{ $key = . | replace "~1" "/" | replace "~0" "~" -}}
{{- if kindIs "slice" $at }}{{ $at = index $at (int $key) }}{{ else }}{{ $at = get $at $key }}{{ end -}}
{{- if empty $at }}{{ fail (printf "component %s does not find %s in %s" $.folder $.step.path $.name) }}{{ end -}}
{{- end -}}
{{- $value := .step.value }}{{ if kindIs "map" $value }}{{ $value = deepCopy $value }}{{ end -}}
{{- if eq .step.op "test" -}}
{{- if ne (toJson $value) (toJson (get $at $last)) }}{{ fail (printf "component %s wants %s of %s to be %v, and it is %v: another component has changed it" .folder .step.path .name $value (get $at $last)) }}{{ end -}}
{{- else if eq .step.op "remove" -}}
{{- $_ := unset $at $last -}}
{{- else if eq $last "-" -}}
{{- $_ := set $above $key (append $at $value) -}}
{{- else -}}
{{- $_ := set $at $last $value -}}
{{- end -}}
{{- end -}}
