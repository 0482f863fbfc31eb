{{/*
training-runtimes.trackingArgs: flags of a runtime whose runs are tracked, a YAML map.
Argument: a list of tracking's values and the runtime's framework.
*/}}
{{- define "training-runtimes.trackingArgs" -}}
{{- $tracking := index . 0 }}
{{- $args := dict }}
{{- if and $tracking.kind (eq (index . 1) "trl") }}
  {{- $_ := set $args "report_to" $tracking.kind }}
  {{- if eq $tracking.kind "trackio" }}
    {{- with $tracking.endpoint }}
      {{- $_ := set $args "trackio_space_id" . }}
    {{- end }}
    {{- with $tracking.project }}
      {{- $_ := set $args "project" . }}
    {{- end }}
  {{- end }}
{{- end }}
{{- toYaml $args }}
{{- end }}

{{/*
training-runtimes.trackingEnv: environment of a runtime whose runs are tracked, a YAML map. Files go to the workspace,
also those of a tracker that only a TrainJob names.
Argument: a list of tracking's values and the runtime's framework.
*/}}
{{- define "training-runtimes.trackingEnv" -}}
{{- $tracking := index . 0 }}
{{- $names := dict
      "tensorboard" (dict)
      "wandb" (dict "folder" "WANDB_DIR" "endpoint" "WANDB_BASE_URL" "project" "WANDB_PROJECT" "token" "WANDB_API_KEY")
      "mlflow" (dict "endpoint" "MLFLOW_TRACKING_URI" "project" "MLFLOW_EXPERIMENT_NAME" "token" "MLFLOW_TRACKING_TOKEN")
      "trackio" (dict "token" "HF_TOKEN") }}
{{- $env := dict }}
{{- if eq (index . 1) "trl" }}
  {{- $env = dict
        "TENSORBOARD_LOGGING_DIR" "/workspace/output/tensorboard"
        "TRACKIO_DIR" "/workspace/output/trackio" }}
{{- end }}
{{- if and $tracking.kind (eq (index . 1) "trl") }}
  {{- $name := get $names $tracking.kind }}
  {{- with $name.folder }}
    {{- $_ := set $env . "/cache" }}
  {{- end }}
  {{- if and $name.endpoint $tracking.endpoint }}
    {{- $_ := set $env $name.endpoint $tracking.endpoint }}
  {{- end }}
  {{- if and $name.project $tracking.project }}
    {{- $_ := set $env $name.project $tracking.project }}
  {{- end }}
  {{- if and $name.token $tracking.secret.name }}
    {{- $_ := set $env $name.token (dict "secretKeyRef" (dict "name" $tracking.secret.name "key" $tracking.secret.key)) }}
  {{- end }}
{{- end }}
{{- toYaml $env }}
{{- end }}

{{/*
training-runtimes.validateTracking: refuse what no run could report with.
Argument: the root context.
*/}}
{{- define "training-runtimes.validateTracking" -}}
{{- with .Values.tracking }}
{{- if and (eq .kind "mlflow") (not .endpoint) }}
  {{- fail "\n\ntracking.endpoint is empty, and MLflow needs a server. Set it, e.g. to http://mlflow.mlflow.svc:5000.\n" }}
{{- else if and (eq .kind "wandb") (not .secret.name) }}
  {{- fail "\n\ntracking.secret.name is empty, and W&B needs an API key. Create a secret with it, and set its name.\n" }}
{{- else if and (has .kind (list "" "tensorboard")) (or .endpoint .project .secret.name) }}
  {{- fail (printf "\n\ntracking has an endpoint, a project or a secret, but its kind is %q, which reports to no server. Set tracking.kind to wandb, mlflow or trackio, or leave them out.\n" .kind) }}
{{- end }}
{{- end }}
{{- end }}
