{{/*
stoker.deviceClaim: spec of a ResourceClaimTemplate for devices of one class.
Arguments, a dict:
  name   name of the claim in the pod
  class  the devices' class
  count  how many
*/}}
{{- define "stoker.deviceClaim" -}}
spec:
  devices:
    requests:
      - name: {{ .name }}
        exactly:
          deviceClassName: {{ .class }}
          allocationMode: ExactCount
          count: {{ int .count }}
{{- end }}
