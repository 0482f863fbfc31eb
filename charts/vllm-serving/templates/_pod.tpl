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
enableServiceLinks: false
terminationGracePeriodSeconds: {{ $drain.grace }}
securityContext:
  {{- include "stoker.podSecurityContext" .Values.podSecurityContext | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $profile.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with merge (deepCopy (.Values.nodeSelector | default dict)) ($profile.nodeSelector | default dict) }}
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
{{- with include "vllm-serving.deviceClaim" (list . $profile) | fromYaml }}
resourceClaims:
  - name: {{ .name }}
    resourceClaimTemplateName: {{ include "vllm-serving.deviceClaimName" (list $ .) | toYaml }}
{{- end }}
initContainers:
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
    {{- with .Values.model.secretName }}
    envFrom:
      - secretRef:
          name: {{ . | quote }}
    {{- end }}
    resources:
      requests: {cpu: 250m, memory: 512Mi}
      limits: {cpu: "2", memory: 2Gi}
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
  {{- end }}
  - name: prepare
    image: {{ $fetch }}
    imagePullPolicy: {{ .Values.imagePullPolicy }}
    command: [stoker, adapters, prepare, --settings, /settings/adapters.yaml, --output, /config]
    resources:
      requests: {cpu: 100m, memory: 128Mi}
      limits: {cpu: "1", memory: 1Gi}
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
      requests: {cpu: 100m, memory: 64Mi}
      limits: {cpu: "2", memory: 512Mi}
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
      requests: {cpu: 50m, memory: 128Mi}
      limits: {cpu: "1", memory: 1Gi}
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
      {{- $env := merge (include "vllm-serving.ownEnv" (list . $profile) | fromYaml) (.Values.env | default dict) ($profile.env | default dict) }}
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
      {{- include "vllm-serving.dataMounts" . | nindent 6 }}
      - name: config
        mountPath: /config
        readOnly: true
      - name: shm
        mountPath: /dev/shm
      - name: {{ include "vllm-serving.scratchVolume" . }}
        mountPath: /cache
      - name: tmp
        mountPath: /tmp
volumes:
  - name: settings
    downwardAPI:
      items:
        {{- range $name, $_ := include "vllm-serving.files" . | fromYaml }}
        - path: {{ $name }}
          fieldRef:
            fieldPath: metadata.annotations['stoker.dev/{{ $name }}']
        {{- end }}
  - name: config
    emptyDir:
      sizeLimit: 64Mi
  {{- if not .Values.api.anonymous }}
  - name: keys
    secret:
      secretName: {{ .Values.api.keySecret | quote }}
  {{- end }}
  {{- if .Values.model.image.reference }}
  - name: model
    image:
      reference: {{ .Values.model.image.reference }}
      pullPolicy: {{ .Values.imagePullPolicy }}
  {{- else if and .Values.model.uri (not .Values.model.cacheClaim) }}
  - name: model
    emptyDir:
      sizeLimit: {{ .Values.model.cacheSize }}
  {{- end }}
  {{- range concat (include "vllm-serving.claims" . | fromYamlArray) (list .Values.model.cacheClaim .Values.scratch.cacheClaim) | compact | uniq }}
  - name: {{ include "vllm-serving.claimVolume" . }}
    persistentVolumeClaim:
      claimName: {{ . | quote }}
  {{- end }}
  {{- with .Values.published.configMap }}
  - name: listed
    configMap:
      name: {{ . | quote }}
      optional: true
  {{- end }}
  - name: shm
    emptyDir:
      medium: Memory
      sizeLimit: {{ $profile.sharedMemory | quote }}
  {{- if not .Values.scratch.cacheClaim }}
  - name: scratch
    emptyDir:
      sizeLimit: {{ .Values.scratch.cacheSize }}
  {{- end }}
  - name: tmp
    emptyDir:
      sizeLimit: {{ .Values.scratch.tmpSize }}
{{- end }}

{{/*
vllm-serving.dataMounts: model, adapters and settings, at the same places in every container, and never written to.
Argument: the root context.
*/}}
{{- define "vllm-serving.dataMounts" -}}
- name: settings
  mountPath: /settings
  readOnly: true
{{- if not .Values.model.claim.name }}
- name: {{ include "vllm-serving.modelVolume" . }}
  mountPath: /models/{{ .Values.model.uri | empty | ternary "image" "fetched" }}
  readOnly: true
{{- end }}
{{- range include "vllm-serving.claims" . | fromYamlArray }}
- name: {{ include "vllm-serving.claimVolume" . }}
  mountPath: /claims/{{ . }}
  readOnly: true
{{- end }}
{{- if .Values.published.configMap }}
- name: listed
  mountPath: /listed
  readOnly: true
{{- end }}
{{- end }}

{{/*
vllm-serving.modelVolume: name of the volume of a model that is fetched or comes as an image.
Argument: the root context.
*/}}
{{- define "vllm-serving.modelVolume" -}}
{{- if .Values.model.cacheClaim }}{{ include "vllm-serving.claimVolume" .Values.model.cacheClaim }}{{ else }}model{{ end }}
{{- end }}

{{/*
vllm-serving.scratchVolume: name of the volume at /cache.
Argument: the root context.
*/}}
{{- define "vllm-serving.scratchVolume" -}}
{{- if .Values.scratch.cacheClaim }}{{ include "vllm-serving.claimVolume" .Values.scratch.cacheClaim }}{{ else }}scratch{{ end }}
{{- end }}
