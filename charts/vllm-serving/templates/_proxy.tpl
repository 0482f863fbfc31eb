{{/*
vllm-serving.caddyfile: the proxy's configuration. vLLM listens on loopback; what is not named here is not reachable.
Argument: the root context.
*/}}
{{- define "vllm-serving.caddyfile" -}}
{{- $listens := dict "clients" ":8080" "probes" ":8082" }}
{{- if .Values.rl.enabled }}
  {{- $_ := set $listens "control" ":8090" }}
{{- end }}
{{- include "stoker.caddyOptions" (dict "listens" $listens "grace" "5s") }}

(server) {
	reverse_proxy 127.0.0.1:8000 {
		{block}
		{{- /* A connection that vLLM closed for having been idle is tried again on a new one. */}}
		lb_try_duration 2s
		lb_try_interval 100ms
		transport http {
			dial_timeout 2s
			keepalive 4s
		}
	}
}

{{ include "stoker.caddyHealth" . }}

{{ include "vllm-serving.caddySnippets" . }}

# For clients.
:8080 {
	log
	{{- /* One request for each connection: one that is kept would bring requests to a replica that is about to end, which
	vLLM 0.31 answers with 500. It would also keep them from replicas that have been added. */}}
	header Connection close
	log_append user_agent {http.request.header.User-Agent}
	log_skip /health
	@health {
		method GET HEAD
		path /health
	}
	@open {
		method GET POST
		path {{ join " " .Values.api.paths }}{{ if has "/v1/responses" .Values.api.paths }} /v1/responses/*{{ end }}
	}
	handle @health {
		import health 127.0.0.1:8000
	}
	handle @open {
		route {
			import guard
			{{- /* Clients alone: a replica that has all it can do is to go on answering probes. */}}
			{{- with int .Values.api.maxConcurrentRequests }}
			import server {
				unhealthy_request_count {{ . }}
			}
			{{- else }}
			import server
			{{- end }}
		}
	}
	handle {
		import unknown
	}
}

# For the kubelet and Prometheus.
:8082 {
	handle /health {
		import server
	}
	handle /metrics {
		import server
	}
	handle /proxy/metrics {
		metrics
	}
	handle /proxy/health {
		respond ok 200
	}
	handle {
		import unknown
	}
}
{{- if .Values.rl.enabled }}

# For the trainers that a network policy names.
:8090 {
	log
	log_append user_agent {http.request.header.User-Agent}
	@open {
		method GET POST
		path {{ include "vllm-serving.rlPaths" . }}
	}
	handle @open {
		route {
			import guard
			import server
		}
	}
	{{- /* A trainer asks what is served, and has it looked for what it has just published. */}}
	@adapters {
		method GET POST
		path /adapters /look
	}
	handle @adapters {
		route {
			import guard
			reverse_proxy 127.0.0.1:8081 {
				transport http {
					dial_timeout 2s
				}
			}
		}
	}
	handle {
		import unknown
	}
}
{{- end }}
{{ end }}

{{/*
vllm-serving.caddySnippets: what a proxy asks of whoever wants something, and what it says to others.
Argument: the root context.
*/}}
{{- define "vllm-serving.caddySnippets" -}}
(guard) {
	request_body {
		max_size {{ .Values.api.maxBodySize }}
	}
	{{- if not .Values.api.anonymous }}
	@closed not bearer_key /keys/api-key /keys/api-key-next
	header @closed Content-Type application/json
	respond @closed `{"error":{"message":"The API key is missing or wrong.","type":"authentication_error","param":null,"code":401}}` 401
	{{- end }}
}

(unknown) {
	header Content-Type application/json
	respond `{"error":{"message":"There is no such path.","type":"not_found_error","param":null,"code":404}}` 404
}
{{- end }}

{{/*
vllm-serving.rlPaths: what reinforcement learning asks of vLLM: answers, tokens and, unless trainers share the release,
pausing, weights, adapters and caches. A fleet passes on what clients ask too, and what trainers ask before they start.
Argument: the root context.
*/}}
{{- define "vllm-serving.rlPaths" -}}
{{- $paths := list "/v1/completions" "/tokenize" "/detokenize" "/v1/models" "/health" }}
{{- if .Values.fleet.enabled }}
  {{- $paths = concat $paths (list "/server_info" "/get_world_size") .Values.api.paths | uniq }}
  {{- if has "/v1/responses" .Values.api.paths }}
    {{- $paths = append $paths "/v1/responses/*" }}
  {{- end }}
{{- end }}
{{- if not .Values.rl.adaptersOnly }}
  {{- $paths = concat (list
        "/pause" "/resume" "/is_paused" "/abort_requests"
        "/init_weight_transfer_engine" "/start_weight_update" "/update_weights" "/finish_weight_update"
        "/shutdown_weight_transfer_engine" "/update_weight_version" "/weight_info" "/get_world_size"
        "/v1/load_lora_adapter" "/v1/unload_lora_adapter"
        "/reset_prefix_cache" "/sleep" "/wake_up" "/is_sleeping" "/release_kv_cache_memory"
        "/inference/v1/generate" "/inference/v1/abort_requests") $paths }}
{{- end }}
{{- join " " $paths }}
{{- end }}
