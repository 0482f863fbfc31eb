{{/*
stoker.labels: labels that say which chart and release an object is from. Not for pods, which a new version would replace.
Argument: the root context.
*/}}
{{- define "stoker.labels" -}}
{{ include "stoker.chartLabel" . }}
{{ include "stoker.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{ include "stoker.origin" . }}
{{- end }}

{{/*
stoker.origin: labels that say what objects come from, whichever chart and release it is.
Argument: the root context.
*/}}
{{- define "stoker.origin" -}}
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
