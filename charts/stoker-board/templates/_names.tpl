{{/*
stoker-board.name: name of the objects. Write it with toYaml: it may read as a number or as true.
Argument: the root context.
*/}}
{{- define "stoker-board.name" -}}
{{- include "stoker.dnsLabel" (dict "name" (.Values.fullnameOverride | default .Release.Name) "max" 50) }}
{{- end }}

{{/*
stoker-board.podLabels: labels of the pods.
Argument: the root context.
*/}}
{{- define "stoker-board.podLabels" -}}
{{ include "stoker.selector" . }}
{{ include "stoker.origin" . }}
{{- end }}

{{/*
stoker-board.namespaces: the namespaces that the page shows, a YAML list.
Argument: the root context.
*/}}
{{- define "stoker-board.namespaces" -}}
{{- .Values.namespaces | default (list .Release.Namespace) | toYaml }}
{{- end }}

{{/*
stoker-board.rightsName: name of the Role and its binding in a namespace, in which releases of one name may meet.
Arguments, a list: the root context, the namespace.
*/}}
{{- define "stoker-board.rightsName" -}}
{{- $root := index . 0 }}
{{- $name := include "stoker-board.name" $root }}
{{- if eq (index . 1) $root.Release.Namespace }}
  {{- $name }}
{{- else }}
  {{- printf "%s-%s" $name (printf "%s %s" $root.Release.Namespace $root.Release.Name | sha256sum | trunc 8) }}
{{- end }}
{{- end }}

{{/*
stoker-board.hosts: the names under which the page answers, a YAML list.
Argument: the root context.
*/}}
{{- define "stoker-board.hosts" -}}
{{- $name := include "stoker-board.name" . }}
{{- $service := printf "%s.%s" $name .Release.Namespace }}
{{- concat (list $name $service (printf "%s.svc" $service)) (compact (list .Values.ingress.host)) (.Values.hosts | default list) | uniq | toYaml }}
{{- end }}

{{/*
stoker-board.claimVolume: name of a claim's volume.
Argument: the claim's name.
*/}}
{{- define "stoker-board.claimVolume" -}}
claim-{{ regexMatch "^[a-z0-9-]{1,57}$" . | ternary . (. | sha256sum | trunc 16) }}
{{- end }}

{{/*
stoker-board.nodes: labels that a node must have, a YAML map.
Argument: the root context.
*/}}
{{- define "stoker-board.nodes" -}}
{{- $built := include "stoker.imageNodes" (dict "root" . "names" (list "board")) | fromYaml }}
{{- include "stoker.overlay" (list $built .Values.nodeSelector) }}
{{- end }}

{{/*
stoker-board.account: name of the service account.
Argument: the root context.
*/}}
{{- define "stoker-board.account" -}}
{{- include "stoker.serviceAccountName" (dict "root" . "name" (include "stoker-board.name" .)) }}
{{- end }}
