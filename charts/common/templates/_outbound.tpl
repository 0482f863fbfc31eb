{{/*
stoker.outboundEnv: environment that brings a container through proxies and lets it trust the bundle of values, with
what values add to it, a YAML map. Each client reads a variable of its own: Python's ssl and Rust, requests, curl, and
AWS's.
Arguments, a dict:
  root    the root context
  env     environment that wins over it, a list of maps, the last one winning; a proxy may come from there
  direct  more hosts that are asked directly, a list (optional)
*/}}
{{- define "stoker.outboundEnv" -}}
{{- $outbound := .root.Values.outbound }}
{{- $env := dict }}
{{- with $outbound.httpProxy }}
  {{- $_ := set $env "HTTP_PROXY" . }}
{{- end }}
{{- with $outbound.httpsProxy }}
  {{- $_ := set $env "HTTPS_PROXY" . }}
{{- end }}
{{- if or $outbound.caBundle.configMap $outbound.caBundle.secret }}
  {{- range list "SSL_CERT_FILE" "REQUESTS_CA_BUNDLE" "CURL_CA_BUNDLE" "AWS_CA_BUNDLE" }}
    {{- $_ := set $env . "/etc/stoker/ca/ca.crt" }}
  {{- end }}
{{- end }}
{{- $env = include "stoker.overlay" (prepend .env $env) | fromYaml }}
{{- /* A TrainJob's own environment may bring the proxy: for that one `noProxy` is enough. */}}
{{- $proxied := not (empty $outbound.noProxy) }}
{{- range list "HTTP_PROXY" "HTTPS_PROXY" "ALL_PROXY" }}
  {{- $proxied = or $proxied (hasKey $env .) (hasKey $env (lower .)) }}
{{- end }}
{{- if and $proxied (not (hasKey $env "NO_PROXY")) }}
  {{- /* The pod itself, the cluster, and where clouds hand out identities. */}}
  {{- $direct := list "localhost" "127.0.0.1" "::1" ".svc" ".cluster.local"
        "169.254.169.254" "169.254.170.23" "metadata.google.internal" }}
  {{- $_ := set $env "NO_PROXY" (concat ($.direct | default list) $direct ($outbound.noProxy | default list) | uniq | join ",") }}
{{- end }}
{{- toYaml $env }}
{{- end }}

{{/*
stoker.reachVolumes: what a container mounts to reach the stores of models and data, a YAML list: the bundle of
certificate authorities and a token for a cloud; nothing where values name neither. The token is not the one for the
Kubernetes API, which no pod gets.
Argument: the root context.
*/}}
{{- define "stoker.reachVolumes" -}}
{{- $bundle := .Values.outbound.caBundle }}
{{- if or $bundle.configMap $bundle.secret }}
- name: ca-bundle
  {{- if $bundle.configMap }}
  configMap:
    name: {{ $bundle.configMap | quote }}
  {{- else }}
  secret:
    secretName: {{ $bundle.secret | quote }}
  {{- end }}
    items:
      - key: {{ $bundle.key | quote }}
        path: ca.crt
{{- end }}
{{- with .Values.serviceAccount.tokenAudience }}
- name: identity
  projected:
    sources:
      - serviceAccountToken:
          audience: {{ . | quote }}
          expirationSeconds: 3600
          path: token
{{- end }}
{{- end }}

{{/*
stoker.reachMounts: the mounts of those volumes.
Argument: the root context.
*/}}
{{- define "stoker.reachMounts" -}}
{{- $places := dict "ca-bundle" "/etc/stoker/ca" "identity" "/var/run/secrets/stoker.dev/identity" }}
{{- range include "stoker.reachVolumes" . | fromYamlArray }}
- name: {{ .name }}
  mountPath: {{ get $places .name }}
  readOnly: true
{{- end }}
{{- end }}

{{/*
stoker.validateOutbound: refuses two bundles. Renders nothing.
Argument: the root context.
*/}}
{{- define "stoker.validateOutbound" -}}
{{- $outbound := .Values.outbound }}
{{- if and $outbound.caBundle.configMap $outbound.caBundle.secret }}
  {{- fail "\n\noutbound.caBundle: there are two bundles, configMap and secret. Remove one of them.\n" }}
{{- end }}
{{- end }}
