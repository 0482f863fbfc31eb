{{/*
training-runtimes.deviceClaim: what a pod's devices are claimed by, a YAML map; empty where they are no claim.
Argument: a resolved entry.
*/}}
{{- define "training-runtimes.deviceClaim" -}}
{{- with .deviceClassName }}
{{- toYaml (dict "name" "accelerator" "class" . "count" $.resources.devices "selectors" $.deviceSelectors) }}
{{- end }}
{{- end }}

{{/*
training-runtimes.deviceClaimName: name of the template of that claim, the same for all runtimes with the same devices.
Argument: a list of the root context and the claim.
*/}}
{{- define "training-runtimes.deviceClaimName" -}}
{{- $root := index . 0 }}
{{- include "stoker.deviceClaimName" (dict "root" $root "owner" $root.Release.Name "claim" (index . 1)) }}
{{- end }}

{{/*
training-runtimes.resources: requests and limits of the container `node`.
Argument: a resolved entry.
*/}}
{{- define "training-runtimes.resources" -}}
{{- $devices := dict }}
{{- if .resourceName }}
  {{- with .resources.devices }}
    {{- $_ := set $devices $.resourceName (toString .) }}
  {{- end }}
{{- end }}
{{- range $name, $count := .rdma.resources }}
  {{- if $count }}
    {{- $_ := set $devices $name (toString $count) }}
  {{- end }}
{{- end }}
{{- with .rdma.hugepages }}
  {{- $_ := set $devices "hugepages-2Mi" . }}
{{- end }}
{{- include "stoker.resources" (dict
      "resources" .resources "devices" $devices "claim" (empty .deviceClassName | ternary "" "accelerator")
      "where" (printf "runtimes.%s.resources or accelerators.%s.resources" .entry .accelerator)) }}
{{- end }}
