{{/*
vllm-serving.takesWeights: "true" if the fleet takes whole weights: without room for adapters it does, because vLLM
cannot load weights beside them.
Argument: the root context.
*/}}
{{- define "vllm-serving.takesWeights" -}}
{{- if and .Values.fleet.enabled (not .Values.lora.maxRank) }}true{{ end }}
{{- end }}

{{/*
vllm-serving.fleetSelector: labels that select the pods of the one URL. A selector cannot change.
Argument: the root context.
*/}}
{{- define "vllm-serving.fleetSelector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-fleet
app.kubernetes.io/instance: {{ toYaml .Release.Name }}
{{- end }}

{{/*
vllm-serving.fleetFolder: where the fleet's desired states are, as every pod sees it. Releases of several namespaces may
share a volume.
Argument: the root context.
*/}}
{{- define "vllm-serving.fleetFolder" -}}
{{- printf "/claims/%s/%s/.fleet-%s.%s" .Values.published.claim (.Values.published.path | trimSuffix "/")
      .Release.Namespace (include "vllm-serving.name" .) }}
{{- end }}

{{/*
vllm-serving.fleetDrain: seconds in which a pod of the one URL answers what has begun: the longest generation, or a call
with the ten seconds in which the fleet takes it back.
Argument: the root context.
*/}}
{{- define "vllm-serving.fleetDrain" -}}
{{- max (int .Values.drain.seconds) (add (int .Values.fleet.timeoutSeconds) 10) }}
{{- end }}

{{/*
vllm-serving.fleetCaddyfile: the configuration of the proxy in front of all replicas.
Argument: the root context.
*/}}
{{- define "vllm-serving.fleetCaddyfile" -}}
{{- include "stoker.caddyOptions" (dict
      "listens" (dict "clients" ":8080" "probes" ":8082") "grace" (printf "%ss" (include "vllm-serving.fleetDrain" .))) }}

(replicas) {
	reverse_proxy {
		{{- /* The ready ones. One that has just gone is left after a failed try. */}}
		dynamic a {
			name {{ include "vllm-serving.name" . }}-replicas
			port 8090
			refresh 1s
		}
		lb_policy header X-Stoker-Group {
			fallback least_conn
		}
		{{- /* By number and not by time: an answer that took long may be lost with its replica too. A request is asked
		again until its answer begins. */}}
		lb_retries 100
		lb_try_interval 100ms
		lb_retry_match {
			method GET HEAD POST
		}
		lb_retry_match {
			expression `{http.reverse_proxy.status_code} in [502, 503]`
		}
		request_buffers {{ .Values.api.maxBodySize }}
		fail_duration 2s
		unhealthy_status 502
		transport http {
			dial_timeout 2s
			keepalive 30s
		}
	}
}

{{ include "stoker.caddyHealth" . }}

{{ include "vllm-serving.caddySnippets" . }}

:8080 {
	log
	{{- /* One request for each connection: one that is kept would bring requests to a pod that is about to end. */}}
	header Connection close
	log_append user_agent {http.request.header.User-Agent}
	log_skip /health
	@health {
		method GET HEAD
		path /health
	}
	@open {
		method GET POST
		path {{ include "vllm-serving.rlPaths" . }}
	}
	@calls {
		method POST
		path {{ include "vllm-serving.fleetCalls" . }}
	}
	@state {
		method GET
		path /fleet /is_paused
	}
	handle @health {
		import health 127.0.0.1:8084
	}
	handle @calls {
		route {
			import guard
			reverse_proxy 127.0.0.1:8084
		}
	}
	handle @state {
		route {
			import guard
			reverse_proxy 127.0.0.1:8084
		}
	}
	handle @open {
		route {
			import guard
			import replicas
		}
	}
	handle {
		import unknown
	}
}

# For the kubelet and Prometheus.
:8082 {
	handle /healthz {
		reverse_proxy 127.0.0.1:8084
	}
	handle /readyz {
		reverse_proxy 127.0.0.1:8084
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
{{ end }}

{{/*
vllm-serving.fleetCalls: the paths of calls that change a server: those that are done for all replicas, and those that
are refused with the reason.
Argument: the root context.
*/}}
{{- define "vllm-serving.fleetCalls" -}}
{{- join " " (list
      "/v1/load_lora_adapter" "/v1/unload_lora_adapter" "/pause" "/resume" "/reset_prefix_cache"
      "/collective_rpc" "/init_weight_transfer_engine" "/start_weight_update" "/update_weights" "/finish_weight_update"
      "/shutdown_weight_transfer_engine" "/update_weight_version") }}
{{- end }}

{{/*
vllm-serving.fleetPod: the spec of a pod of the one URL.
Argument: the root context.
*/}}
{{- define "vllm-serving.fleetPod" -}}
{{- $claim := .Values.published.claim -}}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ add (include "vllm-serving.fleetDrain" .) 15 }}
securityContext:
  {{- include "stoker.podSecurityContext" .Values.podSecurityContext | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.schedulerName }}
schedulerName: {{ . | quote }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- /* Not where replicas go: these pods have no device, and need none. */}}
{{- with pick (include "vllm-serving.nodes" . | fromYaml) "kubernetes.io/arch" }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "vllm-serving.fleetSelector" . | nindent 8 }}
containers:
  - name: proxy
    image: {{ include "stoker.image" (dict "root" . "name" "proxy" "variant" "any") }}
    imagePullPolicy: {{ .Values.imagePullPolicy }}
    args: [run, --config, /settings/Caddyfile, --adapter, caddyfile]
    ports:
      - name: http
        containerPort: 8080
      - name: metrics
        containerPort: 8082
    readinessProbe:
      httpGet: {path: /proxy/health, port: metrics}
      periodSeconds: 2
      timeoutSeconds: 5
    livenessProbe:
      httpGet: {path: /proxy/health, port: 8082}
      periodSeconds: 15
      failureThreshold: 6
      timeoutSeconds: 5
    lifecycle:
      {{- /* Until everybody has heard that this pod is no longer to be asked. */}}
      preStop:
        sleep:
          seconds: 10
    resources:
      {{- include "vllm-serving.containerResources" (list . "fleetProxy") | nindent 6 }}
    securityContext:
      {{- include "stoker.containerSecurityContext" . | nindent 6 }}
    terminationMessagePolicy: FallbackToLogsOnError
    volumeMounts:
      - name: settings
        mountPath: /settings
        readOnly: true
      {{- if not .Values.api.anonymous }}
      - name: keys
        mountPath: /keys
        readOnly: true
      {{- end }}
  - name: fleet
    image: {{ include "stoker.image" (dict "root" . "name" "fetch" "variant" "any") }}
    imagePullPolicy: {{ .Values.imagePullPolicy }}
    command:
      - stoker
      - fleet
      - --folder={{ include "vllm-serving.fleetFolder" . }}
      - --ready={{ include "vllm-serving.name" . }}-replicas:8090
      - --known={{ include "vllm-serving.name" . }}-control:8090
      - --timeout={{ int .Values.fleet.timeoutSeconds }}
      {{- if not .Values.api.anonymous }}
      - --key-file=/keys/api-key
      {{- end }}
    {{- /* It listens on loopback, so the kubelet asks it through the proxy. */}}
    readinessProbe:
      httpGet: {path: /readyz, port: 8082}
      periodSeconds: 2
      timeoutSeconds: 5
    livenessProbe:
      httpGet: {path: /healthz, port: 8082}
      periodSeconds: 10
      failureThreshold: 6
      timeoutSeconds: 5
    lifecycle:
      preStop:
        sleep:
          seconds: 10
    resources:
      {{- include "vllm-serving.containerResources" (list . "fleet") | nindent 6 }}
    securityContext:
      {{- include "stoker.containerSecurityContext" . | nindent 6 }}
    terminationMessagePolicy: FallbackToLogsOnError
    volumeMounts:
      - name: {{ include "vllm-serving.claimVolume" $claim }}
        mountPath: /claims/{{ $claim }}
      {{- if not .Values.api.anonymous }}
      - name: keys
        mountPath: /keys
        readOnly: true
      {{- end }}
volumes:
  - name: settings
    downwardAPI:
      items:
        - path: Caddyfile
          fieldRef:
            fieldPath: metadata.annotations['stoker.dev/Caddyfile']
  {{- if not .Values.api.anonymous }}
  - name: keys
    secret:
      secretName: {{ .Values.api.keySecret | quote }}
  {{- end }}
  - name: {{ include "vllm-serving.claimVolume" $claim }}
    persistentVolumeClaim:
      claimName: {{ $claim | quote }}
{{- end }}
