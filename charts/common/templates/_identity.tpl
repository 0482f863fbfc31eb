{{/*
stoker.serviceAccount: the service account that pods run as, for their spec; nothing where it is the namespace's own.
Arguments, a dict:
  root  the root context
  name  what the account is called if it is created without a name
*/}}
{{- define "stoker.serviceAccount" -}}
{{- with include "stoker.serviceAccountName" . }}
serviceAccountName: {{ toYaml . }}
{{- end }}
{{- end }}

{{/*
stoker.serviceAccountName: its name, or nothing.
Arguments: as above.
*/}}
{{- define "stoker.serviceAccountName" -}}
{{- $account := .root.Values.serviceAccount }}
{{- if or $account.name $account.create }}
  {{- $account.name | default .name }}
{{- end }}
{{- end }}

{{/*
stoker.validateServiceAccount: refuses annotations of an account that the chart does not make. Renders nothing.
Argument: the root context.
*/}}
{{- define "stoker.validateServiceAccount" -}}
{{- $account := .Values.serviceAccount }}
{{- if and $account.annotations (not $account.create) }}
  {{- fail "\n\nserviceAccount.annotations: this release makes no service account. Set serviceAccount.create=true, or annotate yours.\n" }}
{{- end }}
{{- end }}
