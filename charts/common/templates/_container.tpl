{{/*
stoker.resources: requests and limits of a container, with its devices in both: Kubernetes wants them equal, Trainer
reads the requests and the SDK the limits.
Arguments, a dict:
  resources  its requests and limits without devices
  devices    number of devices by extended resource
  claim      name of the pod's claim for devices; empty where there is none
*/}}
{{- define "stoker.resources" -}}
requests:
  {{- merge dict .devices .resources.requests | toYaml | nindent 2 }}
limits:
  {{- merge dict .devices .resources.limits | toYaml | nindent 2 }}
{{- with .claim }}
claims:
  - name: {{ . }}
{{- end }}
{{- end }}

{{/*
stoker.variables: environment that values give.
Argument: a map from name to a string, or to a reference to a secret or ConfigMap.
*/}}
{{- define "stoker.variables" -}}
{{- range $name, $value := . }}
- name: {{ toYaml $name }}
  {{- if kindIs "string" $value }}
  value: {{ $value | quote }}
  {{- else }}
  valueFrom:
    {{- toYaml $value | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}
