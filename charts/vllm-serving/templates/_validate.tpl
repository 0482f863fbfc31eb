{{/*
vllm-serving.validate: refuses what the schema cannot see: values that contradict each other, flags that the pinned vLLM
does not have, APIs that the cluster does not serve. Every message ends with the fix. Renders nothing.
Argument: the root context.
*/}}
{{- define "vllm-serving.validate" -}}
{{- include "vllm-serving.validateLabels" . }}
{{- include "vllm-serving.validateModel" . }}
{{- include "vllm-serving.validateKey" . }}
{{- include "vllm-serving.validateAdapters" . }}
{{- include "vllm-serving.validateVersion" . }}
{{- include "vllm-serving.validateArgs" . }}
{{- include "vllm-serving.validateReach" . }}
{{- include "vllm-serving.validatePod" . }}
{{- include "stoker.validateOutbound" . }}
{{- include "stoker.validateServiceAccount" . }}
{{- include "vllm-serving.validateAutoscaling" . }}
{{- include "vllm-serving.validateMonitoring" . }}
{{- include "vllm-serving.validateApis" . }}
{{- end }}

{{- define "vllm-serving.validateLabels" -}}
{{- $labels := include "stoker.labels" . | fromYaml }}
{{- $annotations := merge (include "stoker.keep" . | fromYaml) (include "stoker.testHook" . | fromYaml) }}
{{- include "stoker.refuseOwnKeys" (list
      (list "commonLabels" .Values.commonLabels (set (deepCopy $labels) "stoker.dev/test" ""))
      (list "commonAnnotations" .Values.commonAnnotations $annotations)
      (list "serviceAccount.annotations" .Values.serviceAccount.annotations $annotations)
      (list "podLabels" .Values.podLabels (include "vllm-serving.podLabels" . | fromYaml))
      (list "podAnnotations" .Values.podAnnotations (include "vllm-serving.podAnnotations" . | fromYaml))
      (list "monitoring.labels" .Values.monitoring.labels $labels)
      (list "monitoring.dashboardLabels" .Values.monitoring.dashboardLabels $labels)) }}
{{- end }}

{{- define "vllm-serving.validateModel" -}}
{{- if hasKey (.Values.resources | default dict) "devices" }}
  {{- fail "\n\nresources.devices: this is not where devices are set. Use the value devices instead.\n" }}
{{- end }}
{{- $own := get (.Values.accelerators | default dict) .Values.accelerator | default dict }}
{{- with ($own.resources | default dict).devices }}
  {{- if ne (int .) (int $.Values.devices) }}
    {{- fail (printf "\n\naccelerators.%s.resources.devices: a replica has as many devices as the value devices says (%d). Set devices=%d, or remove it.\n"
          $.Values.accelerator (int $.Values.devices) (int .)) }}
  {{- end }}
{{- end }}
{{- $given := compact (list .Values.model.claim.name .Values.model.uri .Values.model.image.reference) }}
{{- if ne (len $given) 1 }}
  {{- fail (printf (join "\n" (list
        "\n\nThe model has %d sources and needs exactly one. Set one of:"
        "  --set model.claim.name=CLAIM --set model.claim.path=FOLDER      a claim that holds it"
        "  --set model.uri=hf://Qwen/Qwen3-0.6B                            the Hub, S3 or Google Cloud Storage"
        "  --set model.image.reference=registry.example.com/model:1        an image, if the cluster can mount images\n"))
      (len $given)) }}
{{- end }}
{{- if and .Values.model.image.reference (not (semverCompare ">=1.33.0-0" .Capabilities.KubeVersion.Version)) }}
  {{- fail (printf "\n\nmodel.image needs Kubernetes 1.33 or newer with the feature gate ImageVolume; this cluster has %s. Use model.claim or model.uri.\n"
        .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- end }}

{{- define "vllm-serving.validateKey" -}}
{{- if eq (not .Values.api.keySecret) (not .Values.api.anonymous) }}
  {{- fail (join "\n" (list
        "\n\nSay who may use this model: set either api.keySecret or api.anonymous, not both. To use a key, create one,"
        ""
        "  kubectl create secret generic model-key --from-literal=api-key=$(openssl rand -hex 32)"
        ""
        "and set api.keySecret=model-key. To let everybody in whom the network policy allows, set api.anonymous=true.\n")) }}
{{- end }}
{{- range .Values.api.paths }}
  {{- /* The proxy compares paths in small letters and with single slashes. */}}
  {{- $path := regexReplaceAll "/+" (lower .) "/" }}
  {{- if regexMatch "^/(pause|resume|sleep|wake_up|is_paused|is_sleeping|is_scaling|get_world_size|collective_rpc|invocations|ping|adapters|server_info|abort_requests|scale_elastic_ep|fault_tolerance|reset_|release_|init_weight|start_|stop_|update_weight|finish_|shutdown_|weight_|inference)|^/v1/(un)?load_lora_adapter" $path }}
    {{- fail (printf "\n\napi.paths: %s controls the server and is never open to clients. Remove it; for reinforcement learning, set rl.enabled.\n" .) }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "vllm-serving.validateAdapters" -}}
{{- $names := list (include "vllm-serving.modelName" .) }}
{{- range .Values.adapters }}
  {{- if has .name $names }}
    {{- fail (printf "\n\nadapters: %q is the name of two things that requests can ask for. Rename one.\n" .name) }}
  {{- end }}
  {{- $names = append $names .name }}
{{- end }}
{{- if include "vllm-serving.takesWeights" . }}
  {{- if or .Values.adapters .Values.published.configMap }}
    {{- fail "\n\nfleet.enabled without lora.maxRank takes whole weights, and vLLM cannot load these beside adapters. Set lora.maxRank, or remove adapters and published.configMap.\n" }}
  {{- end }}
{{- else if and (or .Values.published.claim .Values.published.configMap) (not .Values.lora.maxRank) }}
  {{- fail "\n\npublished: the server reserves room for adapters that come later. Set lora.maxRank to the largest rank they may have.\n" }}
{{- end }}
{{- if lt (int .Values.lora.maxCpuLoras) (int .Values.lora.maxLoras) }}
  {{- fail (printf "\n\nlora.maxCpuLoras (%d) is less than lora.maxLoras (%d), and vLLM refuses that. Raise lora.maxCpuLoras.\n"
        (int .Values.lora.maxCpuLoras) (int .Values.lora.maxLoras)) }}
{{- end }}
{{- end }}

{{- define "vllm-serving.validateVersion" -}}
{{- $range := index .Chart.Annotations "stoker.dev/vllm-versions" }}
{{- $version := .Values.vllmVersion | default .Chart.AppVersion }}
{{- $own := get (.Values.images | default dict) "vllm" | default dict }}
{{- if and (or $own.tag $own.digest) (not .Values.vllmVersion) }}
  {{- fail (printf "\n\nimages.vllm.%s names an image of your own. Set vllmVersion to the vLLM version in it, such as 0.31.0.\n"
        (empty $own.tag | ternary "digest" "tag")) }}
{{- end }}
{{- if not (semverCompare (replace " " ", " $range) $version) }}
  {{- fail (printf "\n\nvLLM %s: this chart knows the flags of vLLM %s, which the trainer's image is tested with. %s\n"
        $version $range "Use an image with such a version, or the chart version made for yours.") }}
{{- end }}
{{- end }}

{{- define "vllm-serving.validateArgs" -}}
{{- $known := .Files.Get "files/vllm-flags.json" | fromJson }}
{{- $own := include "vllm-serving.own" . | fromYaml }}
{{- $instead := dict
      "api-key" "api.keySecret" "lora-modules" "adapters" "enable-lora" "adapters or published" "max-loras" "lora.maxLoras"
      "max-lora-rank" "lora.maxRank" "max-cpu-loras" "lora.maxCpuLoras" "tensor-parallel-size" "devices"
      "model" "model.claim, model.uri or model.image" "ssl-keyfile" "ingress.tlsSecret" "ssl-certfile" "ingress.tlsSecret"
      "api-server-count" "replicas" "data-parallel-size" "replicas" "data-parallel-size-local" "replicas"
      "pipeline-parallel-size" "devices" "nnodes" "replicas" }}
{{- $reach := include "stoker.vllmReach" . | fromYamlArray }}
{{- if include "vllm-serving.takesWeights" . }}
  {{- $_ := set $instead "worker-extension-cls" "" }}
{{- end }}
{{- range $flag, $value := .Values.args }}
  {{- $name := splitList "." $flag | first }}
  {{- if or (hasKey $own $name) (hasKey $instead $name) (has $name $reach) }}
    {{- $other := get $instead $name }}
    {{- fail (printf "\n\nargs.%s: the chart sets this flag itself. %s.\n" $flag
          ($other | empty | ternary "Remove it" (printf "Use %s instead" $other))) }}
  {{- end }}
  {{- if not (hasKey $known $name) }}
    {{- $close := list }}
    {{- range $other, $_ := $known }}
      {{- if or (contains $name $other) (contains $other $name) }}
        {{- $close = append $close $other }}
      {{- end }}
    {{- end }}
    {{- fail (printf "\n\nargs.%s: vLLM %s has no such flag. Remove it%s.\n" $flag ($.Values.vllmVersion | default $.Chart.AppVersion)
          ($close | empty | ternary "" (printf ", or use a similar one: %s" ($close | sortAlpha | join ", ")))) }}
  {{- end }}
  {{- $facts := get $known $name }}
  {{- if and $facts.switch (not (kindIs "bool" $value)) }}
    {{- fail (printf "\n\nargs.%s: this flag is a switch. Write true or false, without quotes.\n" $flag) }}
  {{- end }}
  {{- if and (not $facts.switch) (kindIs "bool" $value) }}
    {{- fail (printf "\n\nargs.%s: this flag takes a value. Write it as text, in quotes.\n" $flag) }}
  {{- end }}
  {{- if and $facts.choices (eq $name $flag) (not (has (toString $value) $facts.choices)) }}
    {{- fail (printf "\n\nargs.%s: this flag does not take %q. Use one of: %s.\n" $flag (toString $value) ($facts.choices | join ", ")) }}
  {{- end }}
{{- end }}
{{- $profile := include "vllm-serving.accelerator" . | fromYaml }}
{{- $taken := include "vllm-serving.ownEnv" (list . $profile) | fromYaml }}
{{- range $where, $env := dict "env" .Values.env (printf "accelerators.%s.env" .Values.accelerator) $profile.env }}
  {{- range $name, $_ := $env }}
    {{- if or (hasKey $taken $name) (has $name (list "VLLM_ALLOW_RUNTIME_LORA_UPDATING" "VLLM_API_KEY" "VLLM_SERVER_DEV_MODE")) }}
      {{- fail (printf "\n\n%s.%s: the chart sets this variable itself. Remove it.\n" $where $name) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "vllm-serving.validateReach" -}}
{{- if and .Values.rl.enabled (not .Values.rl.peers) }}
  {{- fail "\n\nrl.enabled opens paths that change the model. Set rl.peers to those who may reach them.\n" }}
{{- end }}
{{- if and .Values.rl.enabled (not .Values.networkPolicy.enabled) }}
  {{- fail "\n\nrl.enabled opens paths that change the model, so it needs a network policy. Set networkPolicy.enabled=true.\n" }}
{{- end }}
{{- if and .Values.rl.adaptersOnly (not .Values.rl.enabled) }}
  {{- fail "\n\nrl.adaptersOnly opens a part of what rl.enabled opens. Set rl.enabled=true too.\n" }}
{{- end }}
{{- if and .Values.rl.adaptersOnly (not .Values.published.claim) }}
  {{- fail "\n\nrl.adaptersOnly: trainers publish adapters to a claim. Set published.claim to the claim that they write to.\n" }}
{{- end }}
{{- if and .Values.fleet.enabled (not .Values.rl.adaptersOnly) }}
  {{- fail "\n\nfleet.enabled: all replicas must stay alike, so no client may change one of them alone. Set rl.enabled=true and rl.adaptersOnly=true.\n" }}
{{- end }}
{{- if and (has (toString .Values.rollout.maxSurge) (list "0" "0%")) (has (toString (.Values.rollout.maxUnavailable | default 0)) (list "0" "0%")) }}
  {{- fail "\n\nrollout: maxSurge and maxUnavailable are both 0, so no replica could ever be replaced. Raise one of them.\n" }}
{{- end }}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) }}
  {{- fail "\n\ningress.enabled: an Ingress needs a host name. Set ingress.host.\n" }}
{{- end }}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) }}
  {{- fail "\n\nhttpRoute.enabled: an HTTPRoute needs a gateway. Set httpRoute.parentRefs.\n" }}
{{- end }}
{{- end }}

{{- define "vllm-serving.validatePod" -}}
{{- $profile := include "vllm-serving.accelerator" . | fromYaml }}
{{- include "stoker.refuseTaken" (dict
      "where" ""
      "given" (pick .Values "volumes" "volumeMounts" "sidecars" "initContainers")
      "volumes" (include "vllm-serving.volumes" (list . $profile) | fromYamlArray)
      "volumeMounts" (include "vllm-serving.serverMounts" . | fromYamlArray)
      "containers" (list "model" "prepare" "proxy" "adapters" "vllm")) }}
{{- include "stoker.validateClaims" (dict
      "where" "volumes"
      "volumes" (concat (include "vllm-serving.volumes" (list . $profile) | fromYamlArray) (.Values.volumes | default list))
      "fix" "Mount the volume that the chart has of it (volumeMounts) at a second path.") }}
{{- range $name, $_ := .Values.model.env }}
  {{- if has $name (list "STORAGE_URI" "STOKER_WORKSPACE" "STOKER_JOB_ID" "STOKER_FETCH_FOR") }}
    {{- fail (printf "\n\nmodel.env.%s: the chart sets this variable itself. Remove it.\n" $name) }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "vllm-serving.validateAutoscaling" -}}
{{- range $name := list "triggers" "prometheusMetadata" "authenticationRef" }}
  {{- if and (get $.Values.autoscaling $name) (ne $.Values.autoscaling.kind "keda") }}
    {{- fail (printf "\n\nautoscaling.%s: only KEDA has triggers. Set autoscaling.kind=keda, or remove it.\n" $name) }}
  {{- end }}
{{- end }}
{{- include "stoker.refuseOwnKeys" (list (list "autoscaling.prometheusMetadata" .Values.autoscaling.prometheusMetadata
      (dict "serverAddress" "" "query" "" "threshold" ""))) }}
{{- if and (eq .Values.autoscaling.kind "hpa") (lt (int .Values.autoscaling.minReplicas) 1) }}
  {{- fail "\n\nautoscaling.minReplicas: an HPA cannot scale to 0. Set it to 1 or more, or set autoscaling.kind=keda.\n" }}
{{- end }}
{{- if lt (int .Values.autoscaling.maxReplicas) (int .Values.autoscaling.minReplicas) }}
  {{- fail "\n\nautoscaling.maxReplicas is less than autoscaling.minReplicas. Raise maxReplicas, or lower minReplicas.\n" }}
{{- end }}
{{- end }}

{{- define "vllm-serving.validateMonitoring" -}}
{{- $asking := list }}
{{- if eq .Values.autoscaling.kind "keda" }}
  {{- $asking = append $asking (list "autoscaling.kind=keda asks" "") }}
{{- end }}
{{- if and (eq .Values.autoscaling.kind "hpa") (not .Values.autoscaling.metrics) }}
  {{- $asking = append $asking (list "autoscaling.kind=hpa asks" "; or name other metrics in autoscaling.metrics") }}
{{- end }}
{{- if .Values.monitoring.rules }}
  {{- $asking = append $asking (list "monitoring.rules asks" "") }}
{{- end }}
{{- if and $asking (not (or .Values.monitoring.podMonitor .Values.monitoring.scrapedElsewhere)) }}
  {{- fail (printf (join " " (list
        "\n\n%s Prometheus for series of this release, and nothing lets it scrape them. Set monitoring.podMonitor=true,"
        "or monitoring.scrapedElsewhere=true if something else scrapes the replicas and sets the label release%s.\n"))
      (first $asking | first) (first $asking | last)) }}
{{- end }}
{{- end }}

{{- define "vllm-serving.validateApis" -}}
{{- $profile := include "vllm-serving.accelerator" . | fromYaml }}
{{- $asked := dict }}
{{- if or .Values.monitoring.podMonitor .Values.monitoring.rules }}
  {{- $_ := set $asked "monitoring.coreos.com/v1" "the Prometheus Operator, or set monitoring.podMonitor and monitoring.rules to false" }}
{{- end }}
{{- if .Values.httpRoute.enabled }}
  {{- $_ := set $asked "gateway.networking.k8s.io/v1" "the Gateway API, or set httpRoute.enabled=false" }}
{{- end }}
{{- if eq .Values.autoscaling.kind "keda" }}
  {{- $_ := set $asked "keda.sh/v1alpha1" "KEDA, or set autoscaling.kind to hpa or none" }}
{{- end }}
{{- if .Values.deviceClaims }}
  {{- $_ := set $asked "resource.k8s.io/v1" "Kubernetes 1.34 or newer, or remove deviceClaims" }}
{{- else if $profile.deviceClassName }}
  {{- $_ := set $asked "resource.k8s.io/v1" "Kubernetes 1.34 or newer, or choose another accelerator" }}
{{- end }}
{{- if not .Values.skipApiCheck }}
  {{- range $api, $fix := $asked }}
    {{- if not ($.Capabilities.APIVersions.Has $api) }}
      {{- fail (printf "\n\nThe cluster does not serve %s. Install %s. Rendering without a cluster? Set skipApiCheck=true.\n" $api $fix) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}
