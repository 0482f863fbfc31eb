{{/*
training-runtimes.sliceOf: how samplers take turns at their device, resolved, a YAML map; empty where they take none.
Arguments, a list: what values say, the accelerator's profile.
*/}}
{{- define "training-runtimes.sliceOf" -}}
{{- $profile := index . 1 }}
{{- with index . 0 }}
{{- $level := eq $profile.kind "cpu" | ternary 0 1 }}
{{- toYaml (dict
      "lease" .lease
      "sleepLevel" (hasKey . "sleepLevel" | ternary .sleepLevel $level | int)
      "quantumSeconds" (.quantumSeconds | default 30 | int)
      "leaseSeconds" (.leaseSeconds | default 10 | int)
      "hookSeconds" (.hookSeconds | default 60 | int)
      "byLoad" (.byLoad | default false)) }}
{{- end }}
{{- end }}

{{/*
training-runtimes.leases: the Leases by which samplers take turns, a YAML list.
Argument: the root context.
*/}}
{{- define "training-runtimes.leases" -}}
{{- $leases := list }}
{{- if .Values.enabled }}
  {{- range include "training-runtimes.catalogue" . | fromYaml }}
    {{- with dig "slice" "lease" "" (.samplers | default dict) }}
      {{- $leases = append $leases . }}
    {{- end }}
  {{- end }}
{{- end }}
{{- toYaml (uniq $leases | sortAlpha) }}
{{- end }}

{{/*
training-runtimes.sliceName: name of the account of samplers that take turns, and of its rights. Releases of one name in
two namespaces may meet in a third.
Arguments, a list: the root context, the Lease.
*/}}
{{- define "training-runtimes.sliceName" -}}
{{- $root := index . 0 }}
{{- printf "%s-slice-%s-%s" $root.Release.Name (index . 1) ($root.Release.Namespace | sha256sum | trunc 8) }}
{{- end }}

{{/*
training-runtimes.sliceMetadata: metadata of the account, or of its rights. They stay when the release no longer has
them, because pods of runs that are under way need them.
Arguments, a list: the root context, the Lease, the namespace.
*/}}
{{- define "training-runtimes.sliceMetadata" -}}
{{- $root := index . 0 -}}
name: {{ include "training-runtimes.sliceName" (list $root (index . 1)) | toYaml }}
namespace: {{ toYaml (index . 2) }}
{{ include "stoker.metadata" (dict "root" $root "annotations" (include "stoker.keep" $root | fromYaml)) }}
{{- end }}
