{{/*
stoker.dnsLabel: a name as an object has it that must begin with a letter and have no dot, such as a Service. A name that
must change for that, or to be short enough, gets the hash of the whole, so that two names never become one.
Arguments, a dict:
  name  the name, as Helm lets a release be called
  max   how many characters it may have
*/}}
{{- define "stoker.dnsLabel" -}}
{{- if and (regexMatch "^[a-z][a-z0-9-]*$" .name) (le (len .name) (int .max)) }}
  {{- .name }}
{{- else }}
  {{- $letter := regexMatch "^[a-z]" .name | ternary "" "r" }}
  {{- printf "%s-%s" (printf "%s%s" $letter (.name | replace "." "-") | trunc (sub .max 9 | int) | trimSuffix "-")
        (.name | sha256sum | trunc 8) }}
{{- end }}
{{- end }}
