{{/*
stoker.refuseOwnKeys: refuses what values give under a key that the chart writes itself. A key that stands twice in a map
is what Kubernetes takes one of, and what Flux and kustomize refuse.
Argument: a list of lists: the path of a value, the map that it is, the map that the chart writes beside it.
*/}}
{{- define "stoker.refuseOwnKeys" -}}
{{- $lines := list }}
{{- range . }}
  {{- $where := index . 0 }}
  {{- $own := index . 2 }}
  {{- range $name, $_ := index . 1 }}
    {{- if hasKey $own $name }}
      {{- $lines = append $lines (printf "%s: the chart sets %s itself. Remove it." $where $name) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- with $lines }}
  {{- fail (printf "\n\n%s\n" (join "\n" .)) }}
{{- end }}
{{- end }}
