{{/*
training-runtimes.samplersOf: the samplers of a runtime, resolved, a YAML map; empty where it has none. Weakest first:
accelerator profile, entry, values.
With an accelerator of their own, `own` is what they have in place of the runtime's.
Arguments, a list: the root context, the entry, its override, the name of their accelerator.
*/}}
{{- define "training-runtimes.samplersOf" -}}
{{- $root := index . 0 }}
{{- $entry := (index . 1).samplers }}
{{- $override := (index . 2).samplers | default dict }}
{{- $accelerator := index . 3 }}
{{- $profile := get $root.Values.accelerators $accelerator }}
{{- if $entry }}
{{- $sizes := get ($entry.sizes | default dict) $profile.kind | default dict }}
{{- $onCpus := include "stoker.vllmOnCpus" $profile.kind | fromYaml }}
{{- $args := $onCpus | dig "args" dict }}
{{- $slice := include "training-runtimes.sliceOf" (list $override.slice $profile) | fromYaml }}
{{- if $slice.sleepLevel }}
  {{- $_ := set $args "enable-sleep-mode" true }}
{{- end }}
{{- if $slice.byLoad }}
  {{- $_ := set $args "enable-server-load-tracking" true }}
{{- end }}
{{- toYaml (dict
      "count" ($override.count | default $entry.count)
      "maxCount" ($override.maxCount | default $override.count | default $entry.count)
      "image" (include "stoker.image" (dict
        "root" $root "name" "vllm" "variant" $profile.imageVariant
        "for" (printf "The samplers of runtime %q on accelerator %q" (index . 1).name $accelerator)))
      "acceleratorKind" $profile.kind
      "own" ($override.accelerator | empty | ternary dict (dict
        "accelerator" $accelerator
        "architecture" $profile.architecture
        "resourceName" $profile.resourceName
        "deviceClassName" $profile.deviceClassName
        "deviceSelectors" $profile.deviceSelectors
        "runtimeClassName" $profile.runtimeClassName
        "nodeSelector" (include "stoker.overlay"
          (list (include "stoker.profileNodes" $profile | fromYaml) $root.Values.nodeSelector) | fromYaml)
        "tolerations" (concat ($profile.tolerations | default list) ($root.Values.tolerations | default list) | uniq)))
      "resources" (mergeOverwrite
        (deepCopy $profile.resources) (deepCopy $sizes) (deepCopy ($override.resources | default dict)))
      "containerResources" (mergeOverwrite
        (deepCopy ($entry.containerResources | default dict)) (deepCopy ($override.containerResources | default dict)))
      "deviceClaims" ($override.deviceClaims | default list)
      "slice" $slice
      "nodeSelector" ($override.nodeSelector | default dict)
      "tolerations" ($override.tolerations | default list)
      "affinity" ($override.affinity | default dict)
      "sharedMemory" ($override.sharedMemory | default $profile.sharedMemory)
      "args" (include "stoker.overlay" (list $args $entry.args $override.args) | fromYaml)
      "env" (include "stoker.overlay" (list ($onCpus | dig "env" dict) $profile.env $entry.env $override.env) | fromYaml)) }}
{{- end }}
{{- end }}

{{/*
training-runtimes.externalSamplersOf: the release whose replicas are the samplers of a runtime, a YAML map with the flags,
the variables, the volumes and the mounts by which its runs reach it; empty where a runtime has no such samplers.
Arguments, a list: the entry, its override.
*/}}
{{- define "training-runtimes.externalSamplersOf" -}}
{{- if (index . 0).externalSamplers }}
{{- $release := (index . 1).externalSamplers | default dict }}
{{- $args := dict }}
{{- $env := dict }}
{{- with $release.url }}
  {{- $_ := set $args "samplers" . }}
{{- end }}
{{- with $release.keySecret }}
  {{- $_ := set $env "STOKER_SAMPLERS_API_KEY" (dict "secretKeyRef" (dict "name" . "key" "api-key")) }}
{{- end }}
{{- with $release.claim }}
  {{- $_ := set $args "adapters" "/adapters" }}
{{- end }}
{{- toYaml (dict
      "args" $args
      "env" $env
      "claim" ($release.claim | default "")
      "path" ($release.path | default "adapters" | trimSuffix "/")) }}
{{- end }}
{{- end }}

{{/*
training-runtimes.samplerAddresses: where the trainers find the samplers of their TrainJob, also those that it may be
scaled to: a name that is not known is looked up again all the time.
Argument: a resolved entry.
*/}}
{{- define "training-runtimes.samplerAddresses" -}}
{{- $addresses := list }}
{{- range $index := until (int .samplers.maxCount) }}
  {{- $addresses = append $addresses (printf "http://$(JOBSET_NAME)-sampler-0-%d.$(JOBSET_NAME):8080" $index) }}
{{- end }}
{{- join "," $addresses }}
{{- end }}

{{/*
training-runtimes.samplerJob: the job of the samplers: vLLM, its proxy and the watcher of the run's versions. The run
ends with its trainers, whatever the samplers do; a sampler that is lost is made anew, alone.
Arguments, a dict:
  root     the root context
  runtime  a resolved entry
*/}}
{{- define "training-runtimes.samplerJob" -}}
- name: sampler
  {{- with include "training-runtimes.afterInitializers" .runtime }}
  {{- . | nindent 2 }}
  {{- end }}
  template:
    spec:
      parallelism: {{ int .runtime.samplers.count }}
      completions: {{ int .runtime.samplers.count }}
      completionMode: Indexed
      {{- /* Without an end: how often a sampler may crash is for the trainers to judge, who wait for it. */}}
      backoffLimit: 2147483647
      podFailurePolicy:
        {{- include "training-runtimes.podFailurePolicy" (dict
          "container" "prepare" "action" "Ignore" "server" "vllm") | nindent 8 }}
      template:
        metadata:
          labels:
            {{- include "training-runtimes.runLabels" .runtime | nindent 12 }}
            stoker.dev/role: sampler
            {{- with .runtime.samplers.slice }}
            {{- /* By it `stoker rl up --turns` knows the Lease, and the network policy who asks the API server. */}}
            stoker.dev/lease: {{ .lease | quote }}
            {{- end }}
          annotations:
            {{- with .runtime.annotations }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
            kubectl.kubernetes.io/default-container: vllm
            stoker.dev/Caddyfile: |
              {{- include "training-runtimes.samplerProxy" . | trim | nindent 14 }}
        spec:
          {{- include "training-runtimes.samplerPod" . | nindent 10 }}
{{- end }}

{{/*
training-runtimes.samplerPod: spec of a sampler's pod.
Arguments: as above.
*/}}
{{- define "training-runtimes.samplerPod" -}}
{{- $fetch := include "training-runtimes.fetchImage" .root }}
{{- $samplers := .runtime.samplers -}}
{{- include "training-runtimes.podBasics" . }}
{{- with $samplers.slice }}
serviceAccountName: {{ include "training-runtimes.sliceName" (list $.root .lease) | toYaml }}
{{- end }}
{{- $own := include "training-runtimes.ofSamplers" .runtime | fromYaml }}
{{- with $own.runtimeClassName }}
runtimeClassName: {{ toYaml . }}
{{- end }}
{{- $nodes := include "stoker.imageNodes" (dict "root" .root "names" (list "vllm" "fetch" "proxy")
      "architecture" $own.architecture) | fromYaml }}
{{- $tolerations := concat $own.tolerations $samplers.tolerations | uniq }}
{{- $labels := list $nodes $own.nodeSelector $samplers.nodeSelector }}
{{- include "training-runtimes.placement" (list .root "sampler" $labels $tolerations) }}
{{- with $samplers.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- include "training-runtimes.podClaims" (list .root $own) }}
initContainers:
  - name: prepare
    image: {{ $fetch | quote }}
    imagePullPolicy: {{ .root.Values.imagePullPolicy }}
    command: [stoker, sampler, --output, /config]
    env:
      {{- include "training-runtimes.samplerEnv" . | nindent 6 }}
    {{- include "training-runtimes.samplerContainer" (dict "memory" "1Gi" "runtime" $.runtime) | nindent 4 }}
    volumeMounts:
      {{- include "training-runtimes.samplerWorkspace" .runtime | nindent 6 }}
      - name: config
        mountPath: /config
  - name: proxy
    image: {{ include "stoker.image" (dict "root" .root "name" "proxy" "variant" "any") | quote }}
    imagePullPolicy: {{ .root.Values.imagePullPolicy }}
    restartPolicy: Always
    args: [run, --config, /settings/Caddyfile, --adapter, caddyfile]
    ports:
      - name: http
        containerPort: 8080
    startupProbe:
      httpGet: {path: /proxy/health, port: http}
      periodSeconds: 1
      failureThreshold: 60
    livenessProbe:
      httpGet: {path: /proxy/health, port: http}
      periodSeconds: 10
      failureThreshold: 6
      timeoutSeconds: 5
    {{- include "training-runtimes.samplerContainer" (dict "memory" "512Mi" "runtime" $.runtime) | nindent 4 }}
    volumeMounts:
      - name: settings
        mountPath: /settings
        readOnly: true
  {{- with $samplers.slice }}
  {{- /* Not last: while the last one is down, the kubelet does not see that vLLM has ended. */}}
  - name: guard
    image: {{ $fetch | quote }}
    imagePullPolicy: {{ $.root.Values.imagePullPolicy }}
    command: [stoker, slice, install, --folder, /slice]
    {{- include "training-runtimes.samplerContainer" (dict "memory" "512Mi" "runtime" $.runtime) | nindent 4 }}
    volumeMounts:
      - name: slice
        mountPath: /slice
  - name: slice
    image: {{ $fetch | quote }}
    imagePullPolicy: {{ $.root.Values.imagePullPolicy }}
    restartPolicy: Always
    command: [stoker, slice, run, {{ .lease | quote }}]
    args:
      - --folder=/slice
      - --engine=http://127.0.0.1:8000
      - --config=/config/vllm.yaml
      - --sleep-level={{ int .sleepLevel }}
      - --quantum={{ int .quantumSeconds }}
      - --lease-seconds={{ int .leaseSeconds }}
      - --hook-seconds={{ int .hookSeconds }}
      {{- if .byLoad }}
      - --by-load
      {{- end }}
    {{- include "training-runtimes.samplerContainer" (dict "memory" "512Mi" "runtime" $.runtime) | nindent 4 }}
    volumeMounts:
      - name: slice
        mountPath: /slice
      - name: config
        mountPath: /config
        readOnly: true
      - name: account
        mountPath: /var/run/secrets/kubernetes.io/serviceaccount
        readOnly: true
  {{- end }}
  - name: adapters
    image: {{ $fetch | quote }}
    imagePullPolicy: {{ .root.Values.imagePullPolicy }}
    restartPolicy: Always
    command: [stoker, adapters, watch, --settings, /config/adapters.yaml]
    args: [--host, 127.0.0.1, --port, "8081"{{ if $samplers.slice }}, --slice, /slice{{ end }}]
    {{- if .runtime.workspace.existingClaim }}
    env: {{- /* for the mount */}}
      {{- include "training-runtimes.jobIdentity" . | nindent 6 }}
    {{- end }}
    readinessProbe:
      httpGet: {path: /readyz, port: 8080}
      periodSeconds: 2
      failureThreshold: 3
      timeoutSeconds: 5
    livenessProbe:
      httpGet: {path: /healthz, port: 8080}
      periodSeconds: 10
      failureThreshold: 6
      timeoutSeconds: 5
    {{- include "training-runtimes.samplerContainer" (dict "memory" "1Gi" "runtime" $.runtime) | nindent 4 }}
    volumeMounts:
      {{- include "training-runtimes.samplerWorkspace" .runtime | nindent 6 }}
      - name: config
        mountPath: /config
        readOnly: true
      {{- if $samplers.slice }}
      - name: slice
        mountPath: /slice
      {{- end }}
containers:
  - name: vllm
    image: {{ $samplers.image | quote }}
    imagePullPolicy: {{ .root.Values.imagePullPolicy }}
    {{- if $samplers.slice }}
    {{- /* The guard starts vLLM when it is its turn, and never ends with 0. */}}
    command: [python3, -I, /slice/guard.py, /slice, vllm, serve, --config, /config/vllm.yaml]
    {{- else }}
    {{- /* Told to stop, or without its engine, vLLM ends with 0. To the Job that is a sampler that is done for good. */}}
    command:
      - sh
      - -c
      - |
        trap 'stopped=yes; kill $server' TERM
        vllm serve --config /config/vllm.yaml "$@" &
        server=$!
        [ -z "$stopped" ] || kill $server
        wait $server
        code=$?
        [ -z "$stopped" ] || wait $server
        [ $code -ne 0 ] && [ -z "$stopped" ] || code=75
        exit $code
      - vllm
    {{- end }}
    args:
      {{- include "training-runtimes.samplerArgs" .runtime | nindent 6 }}
    env:
      {{- include "training-runtimes.samplerServerEnv" . | nindent 6 }}
      {{- with include "stoker.variables" $samplers.env }}
      {{- trim . | nindent 6 }}
      {{- end }}
    {{- /* vLLM listens on loopback, so the kubelet asks it through the proxy. */}}
    startupProbe:
      httpGet: {path: /health, port: 8080}
      periodSeconds: 2
      failureThreshold: 900
      timeoutSeconds: 5
    livenessProbe:
      httpGet: {path: /health, port: 8080}
      periodSeconds: 10
      {{- /* An engine that the guard has ended answers again in its next turn. */}}
      failureThreshold: {{ empty $samplers.slice | ternary 10 180 }}
      timeoutSeconds: 5
    resources:
      {{- include "training-runtimes.resources" $own | nindent 6 }}
    securityContext:
      {{- include "stoker.containerSecurityContext" . | nindent 6 }}
    terminationMessagePolicy: FallbackToLogsOnError
    volumeMounts:
      {{- include "training-runtimes.samplerWorkspace" .runtime | nindent 6 }}
      - name: config
        mountPath: /config
        readOnly: true
      {{- if $samplers.slice }}
      - name: slice
        mountPath: /slice
      {{- end }}
      - name: shm
        mountPath: /dev/shm
      - name: cache
        mountPath: /cache
      - name: tmp
        mountPath: /tmp
volumes:
  {{- with include "training-runtimes.workspaceVolume" .runtime }}
  {{- trim . | nindent 2 }}
  {{- end }}
  - name: settings
    downwardAPI:
      items:
        - path: Caddyfile
          fieldRef:
            fieldPath: metadata.annotations['stoker.dev/Caddyfile']
  - name: config
    emptyDir:
      sizeLimit: 64Mi
  {{- if $samplers.slice }}
  - name: slice
    emptyDir:
      sizeLimit: 64Mi
  - name: account
    projected:
      sources:
        - serviceAccountToken: {path: token, expirationSeconds: 3600}
        - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
        - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
  {{- end }}
  - name: shm
    emptyDir:
      medium: Memory
      sizeLimit: {{ $samplers.sharedMemory | quote }}
  {{- include "training-runtimes.scratchVolumes" .root | nindent 2 }}
{{- end }}

{{- /* training-runtimes.samplerWorkspace: a sampler reads the model and the versions, and writes nothing. */}}
{{- define "training-runtimes.samplerWorkspace" -}}
{{ include "training-runtimes.workspaceMount" . }}
  readOnly: true
{{- end }}

{{/*
training-runtimes.samplerContainer: what the small containers of a sampler share.
Arguments, a dict:
  memory   the container's limit, unless the runtime sets another
  runtime  a resolved entry
*/}}
{{- define "training-runtimes.samplerContainer" -}}
{{- $resources := dict
      "requests" (dict "cpu" "50m" "memory" "64Mi")
      "limits" (dict "cpu" "1" "memory" .memory) }}
{{- $resources = mergeOverwrite $resources (deepCopy .runtime.samplers.containerResources) }}
{{- $where := printf "runtimes.%s.samplers.containerResources" .runtime.entry }}
{{- include "stoker.validateResources" (list $where $resources) -}}
resources:
  {{- toYaml $resources | nindent 2 }}
securityContext:
  {{- include "stoker.containerSecurityContext" . | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
{{- end }}

{{- define "training-runtimes.samplerEnv" -}}
{{- include "training-runtimes.jobIdentity" . }}
- name: STOKER_RESTART_ATTEMPT
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['jobset.sigs.k8s.io/restart-attempt']
- name: STOKER_ROLE
  value: sampler
- name: STOKER_WORKSPACE
  value: /workspace
{{- end }}

{{- /* training-runtimes.samplerServerEnv: what the chart itself tells vLLM. */}}
{{- define "training-runtimes.samplerServerEnv" -}}
{{- include "training-runtimes.samplerEnv" . }}
- name: HF_HUB_OFFLINE
  value: "1"
- name: VLLM_NO_USAGE_STATS
  value: "1"
- name: VLLM_ALLOW_RUNTIME_LORA_UPDATING
  value: "1"
{{- /* For runs that train all weights: the watcher pauses vLLM and has its workers reload, by loopback alone. */}}
- name: VLLM_SERVER_DEV_MODE
  value: "1"
- name: PYTHONPATH
  value: /config/python
{{- end }}

{{/*
training-runtimes.samplerArgs: flags of vLLM that the runner does not decide; those of values win over the runner's.
Argument: a resolved entry.
*/}}
{{- define "training-runtimes.samplerArgs" -}}
- --host=127.0.0.1
- --port=8000
- --disable-uvicorn-access-log
- --disable-fastapi-docs
{{- if gt (int .samplers.resources.devices) 1 }}
- --tensor-parallel-size={{ int .samplers.resources.devices }}
{{- end }}
{{- range $flag, $value := .samplers.args }}
{{- if kindIs "bool" $value }}
- --{{ $value | ternary "" "no-" }}{{ $flag }}
{{- else }}
- {{ printf "--%s=%s" $flag $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/*
training-runtimes.samplerProxy: the proxy's configuration. What is not named here is not reachable: nobody but the
watcher loads an adapter, and nobody sets weights, pauses or sleeps. The samplers of a session ask for its key:
`stoker rl up` mounts it at /keys, and says so in SESSION_GUARD.
*/}}
{{- define "training-runtimes.samplerProxy" -}}
{{- include "stoker.caddyOptions" (dict "listens" (dict "clients" ":8080") "grace" "5s") }}
{{ include "stoker.caddyHealth" . }}
:8080 {
	@closed {
		vars {env.SESSION_GUARD} keyed
		not path /health /readyz /healthz /proxy/health
		not bearer_key /keys/api-key
	}
	handle @closed {
		respond "The session's key is missing or wrong" 401
	}
	@health {
		method GET HEAD
		path /health
	}
	handle @health {
		import health 127.0.0.1:8000
	}
	@ready {
		method GET HEAD
		path /readyz /healthz
	}
	handle @ready {
		import health 127.0.0.1:8081
	}
	@vllm path /v1/completions /v1/models /tokenize /metrics
	handle @vllm {
		request_body {
			max_size 16MB
		}
		reverse_proxy 127.0.0.1:8000 {
			{{- /* A connection that vLLM closed for having been idle is tried again on a new one. */}}
			lb_try_duration 2s
			lb_try_interval 100ms
			transport http {
				dial_timeout 2s
				keepalive 4s
			}
		}
	}
	@watch path /look /adapters
	handle @watch {
		reverse_proxy 127.0.0.1:8081
	}
	handle /proxy/health {
		respond ok 200
	}
	handle {
		respond 404
	}
}
{{- end }}
