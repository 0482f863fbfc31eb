{{/*
stoker.labels: labels that say which chart and release an object is from.
Argument: the root context.
*/}}
{{- define "stoker.labels" -}}
{{ include "stoker.chartLabel" . }}
{{ include "stoker.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: stoker
{{- end }}

{{/*
stoker.selector: labels that select a release's pods. A selector cannot change: no version, nothing of the user's.
Argument: the root context.
*/}}
{{- define "stoker.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ toYaml .Release.Name }}
{{- end }}

{{/*
stoker.chartLabel: the label that names the chart and its version.
Argument: the root context.
*/}}
{{- define "stoker.chartLabel" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}
