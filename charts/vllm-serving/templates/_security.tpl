{{/*
vllm-serving.podSecurityContext: who the pods run as; Pod Security Standard "restricted".
Argument: the root context.
*/}}
{{- define "vllm-serving.podSecurityContext" -}}
runAsNonRoot: true
{{- range $field := list "runAsUser" "runAsGroup" "fsGroup" }}
{{- $id := index $.Values.podSecurityContext $field }}
{{- if not (kindIs "invalid" $id) }}
{{ $field }}: {{ int64 $id }}
{{- end }}
{{- end }}
{{- /* Else the kubelet walks through every file of a large volume at each start. */}}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/*
vllm-serving.containerSecurityContext: what every container gives up; Pod Security Standard "restricted" with a
read-only root. No argument.
*/}}
{{- define "vllm-serving.containerSecurityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop:
    - ALL
readOnlyRootFilesystem: true
runAsNonRoot: true
{{- end }}
