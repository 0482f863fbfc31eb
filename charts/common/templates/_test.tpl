{{/*
stoker.testHook: annotations of the pod of `helm test`. No argument.
*/}}
{{- define "stoker.testHook" -}}
helm.sh/hook: test
# Helm prints what the pod said and removes it: nothing is left that uninstalling would forget.
helm.sh/hook-output-log-policy: hook-succeeded,hook-failed
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded,hook-failed
{{- end }}

{{/*
stoker.testResources: requests and limits of the container of `helm test`. No argument.
*/}}
{{- define "stoker.testResources" -}}
requests: {cpu: 50m, memory: 64Mi}
limits: {cpu: 500m, memory: 256Mi}
{{- end }}
