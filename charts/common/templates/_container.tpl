{{/*
stoker.resources: requests and limits of a container, with its devices in both: Kubernetes wants them equal, Trainer
reads the requests and the SDK the limits. What is not shared out (other devices, huge pages) is in both, too.
Arguments, a dict:
  resources  its requests and limits without devices
  devices    number of devices by extended resource
  claims     names of the pod's claims for devices, a list
  where      the path of the resources in values, for messages
*/}}
{{- define "stoker.resources" -}}
{{- $whole := include "stoker.wholeResources" . | fromYaml -}}
requests:
  {{- merge dict .devices $whole .resources.requests | toYaml | nindent 2 }}
limits:
  {{- merge dict .devices $whole .resources.limits | toYaml | nindent 2 }}
{{- with .claims }}
claims:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/*
stoker.wholeResources: what Kubernetes gives to one container alone, so that requests and limits are equal, a YAML map:
extended resources (such as RDMA and EFA devices) and huge pages. One of the two is enough to write.
Arguments: as above.
*/}}
{{- define "stoker.wholeResources" -}}
{{- $whole := dict }}
{{- range $kind := list "limits" "requests" }}
  {{- range $name, $given := get $.resources $kind }}
    {{- if or (contains "/" $name) (hasPrefix "hugepages-" $name) }}
      {{- if hasKey $.devices $name }}
        {{- fail (printf "\n\n%s.%s: %s is counted by devices or rdma. Remove it here, and set those instead.\n" $.where $kind $name) }}
      {{- end }}
      {{- $quantity := kindIs "string" $given | ternary $given (toString $given) }}
      {{- if and (hasKey $whole $name) (ne (get $whole $name) $quantity) }}
        {{- fail (printf "\n\n%s: limits.%s is %s and requests.%s is %s, and Kubernetes wants them equal. Remove the request.\n"
              $.where $name (get $whole $name) $name $quantity) }}
      {{- end }}
      {{- $_ := set $whole $name $quantity }}
    {{- end }}
  {{- end }}
{{- end }}
{{- toYaml $whole }}
{{- end }}

{{/*
stoker.validateResources: refuses requests above limits, which Kubernetes refuses too, pod by pod. Renders nothing.
Argument: a list of the resources' owner, for messages, and the resources.
*/}}
{{- define "stoker.validateResources" -}}
{{- $resources := index . 1 }}
{{- range $name, $limit := $resources.limits }}
  {{- with get $resources.requests $name | toString }}
    {{- $limit := toString $limit }}
    {{- if gt (include "stoker.quantity" . | float64) (include "stoker.quantity" $limit | float64) }}
      {{- fail (printf "\n\n%s: requests.%s is %s and limits.%s is %s. A pod cannot request more than its limit. Raise the limit.\n"
            (index $ 0) $name . $name $limit) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{/*
stoker.quantity: a Kubernetes quantity as a number.
Argument: the quantity.
*/}}
{{- define "stoker.quantity" -}}
{{- $units := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15
      "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 }}
{{- mulf (regexFind "^[0-9.]+" . | float64) (get $units (regexFind "[A-Za-z]*$" .)) }}
{{- end }}

{{/*
stoker.variables: environment that values give.
Argument: a map from name to a string, or to a reference to a secret or ConfigMap.
*/}}
{{- define "stoker.variables" -}}
{{- range $name, $value := . }}
- name: {{ toYaml $name }}
  {{- if kindIs "string" $value }}
  value: {{ $value | quote }}
  {{- else }}
  valueFrom:
    {{- toYaml $value | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}

{{/*
stoker.extraContainers: the containers of values that start before the chart's, a YAML list; nothing where there are
none. Sidecars are init containers that go on. One without a securityContext gets that of the chart's containers.
Argument: a map with `sidecars` and `initContainers`.
*/}}
{{- define "stoker.extraContainers" -}}
{{- $context := dict "securityContext" (include "stoker.containerSecurityContext" . | fromYaml) }}
{{- $containers := list }}
{{- range .sidecars }}
  {{- $containers = append $containers (include "stoker.overlay" (list $context . (dict "restartPolicy" "Always")) | fromYaml) }}
{{- end }}
{{- range .initContainers }}
  {{- $containers = append $containers (include "stoker.overlay" (list $context .) | fromYaml) }}
{{- end }}
{{- with $containers }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/*
stoker.refuseTaken: refuses what values add to a pod under a name or at a place that is taken, and mounts of no volume.
Renders nothing.
Arguments, a dict:
  where         the path before `volumes` and the like in values, with its dot; may be empty
  given         a map with what values give: volumes, volumeMounts, sidecars, initContainers
  volumes       the pod's other volumes, a list
  volumeMounts  the container's other mounts, a list
  containers    names of the pod's other containers
  mountable     names of volumes that may be mounted besides the pod's own and those given (optional)
*/}}
{{- define "stoker.refuseTaken" -}}
{{- $where := .where }}
{{- $own := list }}
{{- range .volumes }}
  {{- $own = append $own .name }}
{{- end }}
{{- $names := concat $own (.mountable | default list) }}
{{- range .given.volumes }}
  {{- if has .name $own }}
    {{- fail (printf "\n\n%svolumes: the chart has a volume %q already. Choose another name.\n" $where .name) }}
  {{- end }}
  {{- $names = append $names .name }}
{{- end }}
{{- $places := list }}
{{- range .volumeMounts }}
  {{- $places = append $places .mountPath }}
{{- end }}
{{- range .given.volumeMounts }}
  {{- if not (has .name $names) }}
    {{- fail (printf "\n\n%svolumeMounts: there is no volume %q. Use one of: %s.\n" $where .name (uniq $names | join ", ")) }}
  {{- else if has (trimSuffix "/" .mountPath) $places }}
    {{- fail (printf "\n\n%svolumeMounts: the chart mounts %s itself. Mount %q somewhere else.\n" $where .mountPath .name) }}
  {{- end }}
{{- end }}
{{- $containers := .containers }}
{{- range $list := list "sidecars" "initContainers" }}
  {{- range get $.given $list | default list }}
    {{- if has .name $containers }}
      {{- fail (printf "\n\n%s%s: there is a container %q already. Choose another name.\n" $where $list .name) }}
    {{- end }}
    {{- $containers = append $containers .name }}
    {{- range .volumeMounts }}
      {{- if not (has .name $names) }}
        {{- fail (printf "\n\n%s%s: there is no volume %q to mount. Use one of: %s.\n" $where $list .name (uniq $names | join ", ")) }}
      {{- end }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{- /*
stoker.validateClaims: the kubelet never starts a pod that mounts one claim as two volumes, and says nothing
(kubernetes/kubernetes#127004). Arguments: where (what messages begin with), volumes of a pod, and fix.
*/}}
{{- define "stoker.validateClaims" -}}
{{- $volumes := dict }}
{{- range .volumes }}
  {{- $volume := .name }}
  {{- with dig "persistentVolumeClaim" "claimName" "" . }}
    {{- if hasKey $volumes . }}
      {{- fail (printf "\n\n%s: its volumes %s and %s are both of claim %q, and Kubernetes never starts a pod that mounts a claim twice. %s\n"
            $.where (get $volumes .) $volume . $.fix) }}
    {{- end }}
    {{- $_ := set $volumes . $volume }}
  {{- end }}
{{- end }}
{{- end }}
