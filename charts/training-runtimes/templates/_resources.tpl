{{/*
training-runtimes.resources: requests and limits of the container `node`. Devices are named in both, because Trainer
reads the requests and the SDK the limits.
Argument: a resolved entry.
*/}}
{{- define "training-runtimes.resources" -}}
{{- $devices := dict }}
{{- if .resourceName }}
  {{- with .resources.devices }}
    {{- $_ := set $devices $.resourceName (toString .) }}
  {{- end }}
{{- end -}}
requests:
  {{- merge dict $devices .resources.requests | toYaml | nindent 2 }}
limits:
  {{- merge dict $devices .resources.limits | toYaml | nindent 2 }}
{{- if .deviceClassName }}
claims:
  - name: accelerator
{{- end }}
{{- end }}
