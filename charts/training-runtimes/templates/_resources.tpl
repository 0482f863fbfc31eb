{{/*
training-runtimes.deviceClaim: what a pod's devices are claimed by, a YAML map; empty where they are no claim that this
release makes.
Argument: a resolved entry.
*/}}
{{- define "training-runtimes.deviceClaim" -}}
{{- if not .deviceClaims }}
{{- with .deviceClassName }}
{{- toYaml (dict "name" "accelerator" "class" . "count" $.resources.devices "selectors" $.deviceSelectors) }}
{{- end }}
{{- end }}
{{- end }}

{{/*
training-runtimes.podClaims: the claims of a pod, for its spec; nothing where it has none.
Arguments, a list: the root context, a resolved entry.
*/}}
{{- define "training-runtimes.podClaims" -}}
{{- $runtime := index . 1 }}
{{- $claims := $runtime.deviceClaims }}
{{- with include "training-runtimes.deviceClaim" $runtime | fromYaml }}
  {{- $template := include "training-runtimes.deviceClaimName" (list (index $ 0) .) }}
  {{- $claims = list (dict "name" .name "resourceClaimTemplateName" $template) }}
{{- end }}
{{- with $claims }}
resourceClaims:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
training-runtimes.ofSamplers: a resolved entry as its samplers see it: with their accelerator, resources and claims, and
without the fast network between the pods that train.
Argument: a resolved entry with samplers.
*/}}
{{- define "training-runtimes.ofSamplers" -}}
{{- $own := set (set (deepCopy .) "resources" .samplers.resources) "rdma" dict }}
{{- range $name, $value := .samplers.own }}
  {{- $_ := set $own $name $value }}
{{- end }}
{{- toYaml (set (set $own "deviceClaims" .samplers.deviceClaims) "role" "samplers.") }}
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
training-runtimes.deviceClaims: the claims that this release makes templates of, a YAML map of the template's name to the
claim.
Arguments, a dictionary: root and catalogue.
*/}}
{{- define "training-runtimes.deviceClaims" -}}
{{- $root := .root }}
{{- $claims := dict }}
{{- range $runtime := .catalogue }}
  {{- $owners := list $runtime }}
  {{- if $runtime.samplers }}
    {{- $owners = append $owners (include "training-runtimes.ofSamplers" $runtime | fromYaml) }}
  {{- end }}
  {{- range $owners }}
    {{- with include "training-runtimes.deviceClaim" . | fromYaml }}
      {{- $_ := set $claims (include "training-runtimes.deviceClaimName" (list $root .)) . }}
    {{- end }}
  {{- end }}
{{- end }}
{{- toYaml $claims }}
{{- end }}

{{/*
training-runtimes.resources: requests and limits of the container that has the devices.
Argument: a resolved entry.
*/}}
{{- define "training-runtimes.resources" -}}
{{- $devices := dict }}
{{- if and .resourceName (not .deviceClaims) }}
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
{{- $where := printf "runtimes.%s.%sdeviceClaims" .entry (.role | default "") }}
{{- $claims := include "stoker.claimNames" (list .deviceClaims $where) | fromYamlArray }}
{{- with include "training-runtimes.deviceClaim" . | fromYaml }}
  {{- $claims = list .name }}
{{- end }}
{{- include "stoker.resources" (dict
      "resources" .resources "devices" $devices "claims" $claims
      "where" (printf "runtimes.%s.resources or accelerators.%s.resources" .entry .accelerator)) }}
{{- end }}
