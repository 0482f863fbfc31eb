{{/*
vllm-serving.accelerator: the accelerator's profile, a YAML map: what the charts share, and what values change of it.
Argument: the root context.
*/}}
{{- define "vllm-serving.accelerator" -}}
{{- $profiles := mergeOverwrite (.Files.Get "files/accelerators.json" | fromJson) (deepCopy (.Values.accelerators | default dict)) }}
{{- if not (hasKey $profiles .Values.accelerator) }}
  {{- fail (printf "\n\naccelerator: there is no accelerator profile %q. Use one of: %s; or add yours under accelerators.\n"
        .Values.accelerator (keys $profiles | sortAlpha | join ", ")) }}
{{- end }}
{{- $profile := get $profiles .Values.accelerator }}
{{- range list "kind" "imageVariant" "resources" "sharedMemory" }}
  {{- if not (get $profile .) }}
    {{- fail (printf "\n\naccelerators.%s.%s is missing. Set it: a profile of your own needs it.\n" $.Values.accelerator .) }}
  {{- end }}
{{- end }}
{{- if and $profile.deviceSelectors (not $profile.deviceClassName) }}
  {{- fail (printf "\n\naccelerators.%s.deviceSelectors: only claims have selectors. Set deviceClassName, or remove them.\n" $.Values.accelerator) }}
{{- end }}
{{- toYaml $profile }}
{{- end }}

{{/*
vllm-serving.deviceClaim: what the devices of a replica are claimed by, a YAML map; empty where they are no claim that
this release makes.
Arguments, a list: the root context, the accelerator's profile.
*/}}
{{- define "vllm-serving.deviceClaim" -}}
{{- $root := index . 0 }}
{{- if not $root.Values.deviceClaims }}
{{- with (index . 1).deviceClassName }}
{{- toYaml (dict "name" "devices" "class" . "count" $root.Values.devices "selectors" (index $ 1).deviceSelectors) }}
{{- end }}
{{- end }}
{{- end }}

{{/*
vllm-serving.deviceClaimName: name of the template of that claim.
Arguments, a list: the root context, the claim.
*/}}
{{- define "vllm-serving.deviceClaimName" -}}
{{- $root := index . 0 }}
{{- include "stoker.deviceClaimName" (dict "root" $root "owner" (include "vllm-serving.name" $root) "claim" (index . 1)) }}
{{- end }}

{{/*
vllm-serving.resources: requests and limits of vLLM's container.
Arguments, a list: the root context, the accelerator's profile.
*/}}
{{- define "vllm-serving.resources" -}}
{{- $root := index . 0 }}
{{- $profile := index . 1 }}
{{- $resources := mergeOverwrite (deepCopy $profile.resources) (deepCopy ($root.Values.resources | default dict)) }}
{{- range list "requests" "limits" }}
  {{- if not (get $resources .) }}
    {{- fail (printf "\n\naccelerators.%s.resources.%s is missing. Set it: a profile of your own needs it.\n" $root.Values.accelerator .) }}
  {{- end }}
{{- end }}
{{- $where := printf "resources or accelerators.%s.resources" $root.Values.accelerator }}
{{- include "stoker.validateResources" (list $where $resources) }}
{{- $devices := dict }}
{{- if and $profile.resourceName (not $profile.deviceClassName) (not $root.Values.deviceClaims) }}
  {{- $_ := set $devices $profile.resourceName (toString $root.Values.devices) }}
{{- end }}
{{- $claims := include "stoker.claimNames" (list $root.Values.deviceClaims "deviceClaims") | fromYamlArray }}
{{- with include "vllm-serving.deviceClaim" . | fromYaml }}
  {{- $claims = list .name }}
{{- end }}
{{- include "stoker.resources" (dict
      "resources" $resources "devices" $devices "claims" $claims
      "where" $where) }}
{{- end }}

{{/*
vllm-serving.nodes: labels of the nodes for replicas, a YAML map. Weakest first: what the images are built for, the
accelerator's profile, values.
Argument: the root context.
*/}}
{{- define "vllm-serving.nodes" -}}
{{- $profile := include "vllm-serving.accelerator" . | fromYaml }}
{{- $images := include "stoker.imageNodes" (dict "root" . "names" (list "vllm" "fetch" "proxy")
      "architecture" $profile.architecture) | fromYaml }}
{{- include "stoker.overlay" (list $images (include "stoker.profileNodes" $profile | fromYaml) .Values.nodeSelector) }}
{{- end }}
