{{/*
stoker.podSecurityContext: who the pods run as; Pod Security Standard "restricted".
Argument: the value podSecurityContext.
*/}}
{{- define "stoker.podSecurityContext" -}}
runAsNonRoot: true
{{- range $field := list "runAsUser" "runAsGroup" "fsGroup" }}
{{- $id := index $ $field }}
{{- if and (not (kindIs "invalid" $id)) (ne (toString $id) "") }}
{{ $field }}: {{ int64 $id }}
{{- end }}
{{- end }}
{{- with .supplementalGroups }}
supplementalGroups:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- /* Else the kubelet walks through every file of a large volume at each start. */}}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/*
stoker.containerSecurityContext: what every container gives up; Pod Security Standard "restricted" with a read-only
root. No argument.
*/}}
{{- define "stoker.containerSecurityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop:
    - ALL
readOnlyRootFilesystem: true
runAsNonRoot: true
{{- end }}
