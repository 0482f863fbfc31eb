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

{{/*
stoker.metadata: labels and annotations of an object: the chart's own and those of values. Not for pods, which a new
version would replace.
Arguments, a dict:
  root         the root context
  labels       more labels; they win over commonLabels (optional)
  annotations  more annotations; they win over commonAnnotations (optional)
*/}}
{{- define "stoker.metadata" -}}
labels:
  {{- include "stoker.labels" .root | nindent 2 }}
  {{- with include "stoker.overlay" (list .root.Values.commonLabels .labels) | fromYaml }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with include "stoker.overlay" (list .root.Values.commonAnnotations .annotations) | fromYaml }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
stoker.overlay: one flat YAML map of many, the last one winning. Unlike mergeOverwrite it lets an empty string win too,
which is how values take a default back.
Argument: a list of maps, or of nothing in a map's place.
*/}}
{{- define "stoker.overlay" -}}
{{- $overlay := dict }}
{{- range . }}
  {{- range $key, $value := . }}
    {{- $_ := set $overlay $key $value }}
  {{- end }}
{{- end }}
{{- toYaml $overlay }}
{{- end }}
