{{/*
vllm-serving.pod: the spec of a replica's pod. Sidecars are init containers that go on: they are there before vLLM starts
and until it has ended, so that what is answered last still goes through the proxy.
Argument: the root context.
*/}}
{{- define "vllm-serving.pod" -}}
{{- $profile := include "vllm-serving.accelerator" . | fromYaml }}
{{- $drain := include "vllm-serving.drain" . | fromYaml }}
{{- $fetch := include "stoker.image" (dict "root" . "name" "fetch" "variant" "any") -}}
automountServiceAccountToken: false
{{- include "stoker.serviceAccount" (dict "root" . "name" (include "vllm-serving.name" .)) }}
enableServiceLinks: false
terminationGracePeriodSeconds: {{ $drain.grace }}
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
{{- with $profile.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with include "vllm-serving.nodes" . | fromYaml }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with concat ($profile.tolerations | default list) (.Values.tolerations | default list) | uniq }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  {{- with .Values.topologySpreadConstraints }}
  {{- toYaml . | nindent 2 }}
  {{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "stoker.selector" . | nindent 8 }}
  {{- end }}
{{- with .Values.deviceClaims }}
resourceClaims:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "vllm-serving.deviceClaim" (list . $profile) | fromYaml }}
resourceClaims:
  - name: {{ .name }}
    resourceClaimTemplateName: {{ include "vllm-serving.deviceClaimName" (list $ .) | toYaml }}
{{- end }}
initContainers:
  {{- with include "stoker.extraContainers" (dict "sidecars" .Values.sidecars "initContainers" .Values.initContainers) }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- if .Values.model.uri }}
  - name: model
    image: {{ $fetch }}
    imagePullPolicy: {{ .Values.imagePullPolicy }}
    command: [stoker, fetch, model]
    env:
      - name: STORAGE_URI
        value: {{ .Values.model.uri | quote }}
      - name: STOKER_WORKSPACE
        value: /models/fetched/{{ include "vllm-serving.fetched" . }}
      {{- /* Whoever fetches the same is the same job: what is there whole is not asked for again, nor does it change. */}}
      - name: STOKER_JOB_ID
        value: {{ include "vllm-serving.fetched" . | quote }}
      {{- /* So that its messages name values of this chart. */}}
      - name: STOKER_FETCH_FOR
        value: serving
      {{- $env := include "stoker.outboundEnv" (dict "root" . "env" (list .Values.model.env)) | fromYaml }}
      {{- with include "stoker.variables" $env }}
      {{- trim . | nindent 6 }}
      {{- end }}
    {{- with .Values.model.secretName }}
    envFrom:
      - secretRef:
          name: {{ . | quote }}
    {{- end }}
    resources:
      {{- include "vllm-serving.containerResources" (list . "model") | nindent 6 }}
    securityContext:
      {{- include "stoker.containerSecurityContext" . | nindent 6 }}
    terminationMessagePolicy: FallbackToLogsOnError
    volumeMounts:
      - name: {{ include "vllm-serving.modelVolume" . }}
        mountPath: /models/fetched
      - name: {{ include "vllm-serving.scratchVolume" . }}
        mountPath: /cache
      - name: tmp
        mountPath: /tmp
      {{- with include "stoker.reachMounts" . }}
      {{- trim . | nindent 6 }}
      {{- end }}
  {{- end }}
  - name: prepare
    image: {{ $fetch }}
    imagePullPolicy: {{ .Values.imagePullPolicy }}
    command: [stoker, adapters, prepare, --settings, /settings/adapters.yaml, --output, /config]
    resources:
      {{- include "vllm-serving.containerResources" (list . "prepare") | nindent 6 }}
    securityContext:
      {{- include "stoker.containerSecurityContext" . | nindent 6 }}
    terminationMessagePolicy: FallbackToLogsOnError
    volumeMounts:
      {{- include "vllm-serving.dataMounts" . | nindent 6 }}
      - name: config
        mountPath: /config
  - name: proxy
    image: {{ include "stoker.image" (dict "root" . "name" "proxy" "variant" "any") }}
    imagePullPolicy: {{ .Values.imagePullPolicy }}
    restartPolicy: Always
    args: [run, --config, /settings/Caddyfile, --adapter, caddyfile]
    ports:
      - name: http
        containerPort: 8080
      - name: metrics
        containerPort: 8082
      {{- if .Values.rl.enabled }}
      - name: control
        containerPort: 8090
      {{- end }}
    startupProbe:
      httpGet: {path: /proxy/health, port: metrics}
      periodSeconds: 1
      failureThreshold: 60
    livenessProbe:
      httpGet: {path: /proxy/health, port: metrics}
      periodSeconds: 10
      failureThreshold: 6
      timeoutSeconds: 5
    resources:
      {{- include "vllm-serving.containerResources" (list . "proxy") | nindent 6 }}
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
  - name: adapters
    image: {{ $fetch }}
    imagePullPolicy: {{ .Values.imagePullPolicy }}
    restartPolicy: Always
    command: [stoker, adapters, watch, --settings, /settings/adapters.yaml, --port, "8081"]
    ports:
      - name: adapters
        containerPort: 8081
    {{- /* A replica is ready when its model has answered and has the adapters that were published before. */}}
    readinessProbe:
      httpGet: {path: /readyz, port: adapters}
      periodSeconds: 2
      failureThreshold: 3
      timeoutSeconds: 5
    livenessProbe:
      httpGet: {path: /healthz, port: adapters}
      periodSeconds: 10
      failureThreshold: 6
      timeoutSeconds: 5
    resources:
      {{- include "vllm-serving.containerResources" (list . "adapters") | nindent 6 }}
    securityContext:
      {{- include "stoker.containerSecurityContext" . | nindent 6 }}
    terminationMessagePolicy: FallbackToLogsOnError
    volumeMounts:
      {{- include "vllm-serving.dataMounts" . | nindent 6 }}
containers:
  - name: vllm
    image: {{ include "stoker.image" (dict "root" . "name" "vllm" "variant" $profile.imageVariant) }}
    imagePullPolicy: {{ .Values.imagePullPolicy }}
    command: [vllm, serve]
    args:
      {{- include "vllm-serving.args" . | nindent 6 }}
    env:
      {{- $onCpus := include "stoker.vllmOnCpus" $profile.kind | fromYaml | dig "env" dict }}
      {{- $env := include "stoker.overlay" (list $onCpus $profile.env .Values.env (include "vllm-serving.ownEnv" (list . $profile) | fromYaml)) | fromYaml }}
      {{- include "stoker.variables" $env | trim | nindent 6 }}
    {{- /* vLLM listens on loopback, so the kubelet asks it through the proxy. */}}
    startupProbe:
      httpGet: {path: /health, port: 8082}
      periodSeconds: 5
      failureThreshold: {{ div (add (int .Values.startup.timeoutSeconds) 4) 5 }}
      timeoutSeconds: 5
    livenessProbe:
      httpGet: {path: /health, port: 8082}
      periodSeconds: 10
      failureThreshold: 10
      timeoutSeconds: 5
    lifecycle:
      {{- /* Until everybody has heard that this replica is no longer to be asked. */}}
      preStop:
        sleep:
          seconds: {{ $drain.preStop }}
    resources:
      {{- include "vllm-serving.resources" (list . $profile) | nindent 6 }}
    securityContext:
      {{- include "stoker.containerSecurityContext" . | nindent 6 }}
    terminationMessagePolicy: FallbackToLogsOnError
    volumeMounts:
      {{- include "vllm-serving.serverMounts" . | nindent 6 }}
      {{- with .Values.volumeMounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
volumes:
  {{- include "vllm-serving.volumes" (list . $profile) | nindent 2 }}
  {{- with .Values.volumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/*
vllm-serving.containerResources: requests and limits of a container beside vLLM.
Argument: a list of the root, and the container's name in the value containerResources.
*/}}
{{- define "vllm-serving.containerResources" -}}
{{- $resources := get (index . 0).Values.containerResources (index . 1) }}
{{- include "stoker.validateResources" (list (printf "containerResources.%s" (index . 1)) $resources) }}
{{- toYaml $resources }}
{{- end }}
