{{/*
stoker.extraObjects: the objects of values, as they are.
Argument: the root context.
*/}}
{{- define "stoker.extraObjects" -}}
{{- range .Values.extraObjects }}
---
{{ toYaml . }}
{{- end }}
{{- end }}
