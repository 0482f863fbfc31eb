{{/*
stoker.dnsPorts: the ports of a rule that lets pods ask DNS, a YAML list. Some networks judge a packet by the port of the
pod that answers, which is 5353 on OpenShift.
*/}}
{{- define "stoker.dnsPorts" -}}
{{- range $port := list 53 5353 }}
{{- range $protocol := list "UDP" "TCP" }}
- port: {{ $port }}
  protocol: {{ $protocol }}
{{- end }}
{{- end }}
{{- end }}
