{{/*
stoker.caddyOptions: the options of a proxy.
Arguments, a dict:
  listens  the addresses that it listens at, by name
  grace    how long its end may take, so that answers that have begun end too
*/}}
{{- define "stoker.caddyOptions" -}}
{
	admin off
	persist_config off
	auto_https off
	storage_check off
	storage_clean_interval off
	grace_period {{ .grace }}
	metrics
	{{- /* A client may send its key in any header or in the query. This holds for the log of errors too. */}}
	log {
		output stderr
		format filter {
			request>headers delete
			request>uri regexp `\?.*` ?REDACTED
			wrap json
		}
	}
	{{- /* The name is what alerts tell clients' requests from probes by. */}}
	{{- range $name, $address := .listens }}
	servers {{ $address }} {
		name {{ $name }}
		timeouts {
			read_header 10s
			idle 5m
		}
		max_header_size 32KB
	}
	{{- end }}
}
{{- end }}

{{/*
stoker.caddyHealth: the snippet `import health ADDRESS`, by which a proxy asks a server how it is. Whoever asks needs no
key, so it takes little: no body, no more time than a server needs, and no connection that is kept. No argument.
*/}}
{{- define "stoker.caddyHealth" -}}
(health) {
	header Connection close
	request_body {
		max_size 1KB
	}
	reverse_proxy {args[0]} {
		transport http {
			dial_timeout 2s
			response_header_timeout 5s
			keepalive 4s
		}
	}
}
{{- end }}
