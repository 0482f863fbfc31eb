{{/*
training-runtimes.resources: requests and limits of the container `node`.
Argument: a resolved entry.
*/}}
{{- define "training-runtimes.resources" -}}
{{- $devices := dict }}
{{- if .resourceName }}
  {{- with .resources.devices }}
    {{- $_ := set $devices $.resourceName (toString .) }}
  {{- end }}
{{- end }}
{{- include "stoker.resources" (dict
      "resources" .resources "devices" $devices "claim" (empty .deviceClassName | ternary "" "accelerator")) }}
{{- end }}
