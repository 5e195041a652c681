{{/* At most 40 characters: the names of CronJobs may have 52, and "-maintenance" comes behind. */}}
{{- define "gateway.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that selectors name. They cannot be changed later, so no version is among them. */}}
{{- define "gateway.release" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* The labels of one kind of pod; arguments: the root and the component. */}}
{{- define "gateway.selector" -}}
{{ include "gateway.release" (index . 0) }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* All labels of an object; arguments: the root and the component. */}}
{{- define "gateway.labels" -}}
{{ include "gateway.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version | replace "+" "_" | trunc 63 }}
{{- end -}}

{{- define "gateway.image" -}}
{{- $repository := required "image.repository is not set: name the image that you built and pushed" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* gateway.yaml: `config`, and what a pod decides. */}}
{{- define "gateway.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $_ := set $config "server" (merge (dict "host" "0.0.0.0" "port" 8000) (default dict $config.server)) -}}
{{- if (default dict $config.admin).port -}}
{{- $_ := set $config "admin" (merge (dict "host" "0.0.0.0") $config.admin) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* Seconds that a pod may take to end: the notice, the streams, and 15 s to close. */}}
{{- define "gateway.grace" -}}
{{- $server := default dict .Values.config.server -}}
{{- $grace := required "config.server.drain_grace_s is not set" $server.drain_grace_s -}}
{{- $notice := required "config.server.drain_notice_s is not set" $server.drain_notice_s -}}
{{- $least := add (ceil $grace) (ceil $notice) 15 -}}
{{- $given := default $least .Values.terminationGracePeriodSeconds -}}
{{- if lt (int $given) (int $least) -}}
{{- fail (printf "terminationGracePeriodSeconds is %d: with config.server.drain_grace_s and drain_notice_s it has to be %d or more, or streams are cut off" (int $given) (int $least)) -}}
{{- end -}}
{{- int $given -}}
{{- end -}}

{{- define "gateway.secretName" -}}
{{- if .Values.secret.name -}}
{{- .Values.secret.name -}}
{{- else if .Values.secret.external.enabled -}}
{{- include "gateway.fullname" . -}}
{{- else -}}
{{- fail "secret.name is not set: name the Secret with the database's URLs and the pepper, or enable secret.external" -}}
{{- end -}}
{{- end -}}

{{/* Variable to key, of pods that work as the owner of the tables. */}}
{{- define "gateway.ownerKeys" -}}
{{- toYaml (merge (deepCopy .Values.secret.owner) .Values.secret.serving) -}}
{{- end -}}

{{/* Environment: secrets as names of files. Arguments: the root, and a dict of variable to key. */}}
{{- define "gateway.env" -}}
- name: GATEWAY_CONFIG
  value: /etc/gateway/gateway.yaml
{{ include "gateway.secretEnv" (index . 1) | trim }}
{{- range $name, $value := (index . 0).Values.env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{- define "gateway.secretEnv" -}}
{{- range $name, $key := . }}
- name: {{ $name }}_FILE
  value: /run/secrets/gateway/{{ $key }}
{{- end }}
{{- end -}}

{{/* Volume of the keys of a Secret. Arguments: the name of the volume, of the Secret, and a dict of variable to key. */}}
{{- define "gateway.secretVolume" -}}
- name: {{ index . 0 }}
  secret:
    secretName: {{ index . 1 }}
    defaultMode: 0440
    items:
      {{- range (index . 2) | values | uniq | sortAlpha }}
      - key: {{ . }}
        path: {{ . }}
      {{- end }}
{{- end -}}

{{/* What every pod has: no rights in the cluster, no root, and none of the variables that Kubernetes makes of
     Services: of one that is named gateway they begin with GATEWAY_, and the gateway refuses what it does not know. */}}
{{- define "gateway.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  {{- with .Values.runAs.user }}
  runAsUser: {{ int . }}
  {{- end }}
  {{- with .Values.runAs.group }}
  runAsGroup: {{ int . }}
  fsGroup: {{ int . }}
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What every container has. */}}
{{- define "gateway.container" -}}
image: {{ include "gateway.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{/* Mounts and volumes of pods that read the configuration. */}}
{{- define "gateway.mounts" -}}
- name: config
  mountPath: /etc/gateway
  readOnly: true
- name: secrets
  mountPath: /run/secrets/gateway
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Arguments: the root, and a dict of variable to key. */}}
{{- define "gateway.volumes" -}}
{{- $root := index . 0 -}}
- name: config
  configMap:
    name: {{ include "gateway.fullname" $root }}
{{ include "gateway.secretVolume" (list "secrets" (include "gateway.secretName" $root) (index . 1)) }}
- name: tmp
  emptyDir:
    sizeLimit: {{ $root.Values.tmpSizeLimit }}
{{- with $root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The pod that migrates the database. It needs the owner's URL, and no setting: so it can run before anything of
     the release is there. */}}
{{- define "gateway.migration" -}}
backoffLimit: {{ int .Values.migrations.backoffLimit }}
activeDeadlineSeconds: {{ int .Values.migrations.activeDeadlineSeconds }}
template:
  metadata:
    labels:
      {{- include "gateway.labels" (list . "migration") | nindent 6 }}
  spec:
    restartPolicy: Never
    {{- include "gateway.pod" . | nindent 4 }}
    containers:
      - name: migrate
        {{- include "gateway.container" . | nindent 8 }}
        {{- include "gateway.migrate" . | nindent 8 }}
    volumes:
      {{- include "gateway.ownerVolume" . | nindent 6 }}
{{- end -}}

{{- define "gateway.migrate" -}}
args: [db, upgrade]
env:
  {{- include "gateway.secretEnv" (pick .Values.secret.owner "DATABASE_URL") | trim | nindent 2 }}
resources:
  {{- toYaml .Values.migrations.resources | nindent 2 }}
volumeMounts:
  - name: owner
    mountPath: /run/secrets/gateway
    readOnly: true
{{- end -}}

{{- define "gateway.ownerVolume" -}}
{{- $secret := include "gateway.secretName" . -}}
{{- if and .Values.secret.external.enabled (eq .Values.migrations.mode "hook") -}}
{{- $secret = printf "%s-migrate" (include "gateway.fullname" .) -}}
{{- end -}}
{{- include "gateway.secretVolume" (list "owner" $secret (pick .Values.secret.owner "DATABASE_URL")) -}}
{{- end -}}

{{/* A list that must not be empty: to Kubernetes no peers are all peers. Arguments: its name, and the list. */}}
{{- define "gateway.listed" -}}
{{- if not (index . 1) -}}
{{- fail (printf "%s is empty" (index . 0)) -}}
{{- end -}}
{{- toYaml (index . 1) -}}
{{- end -}}

{{/* Scale down one pod in five minutes: a stream lives minutes. */}}
{{- define "gateway.behavior" -}}
scaleDown:
  stabilizationWindowSeconds: 600
  policies:
    - type: Pods
      value: 1
      periodSeconds: 300
{{- end -}}

{{/* Where the API is: health and metrics stay inside. */}}
{{- define "gateway.ingressBackend" -}}
service:
  name: {{ include "gateway.fullname" . }}
  port:
    name: http
{{- end -}}

{{/* Egress that every pod of the release has: DNS, PostgreSQL, and what the operator adds. */}}
{{- define "gateway.egress" -}}
{{- $policy := .Values.networkPolicy -}}
- to:
    {{- include "gateway.listed" (list "networkPolicy.dns" $policy.dns) | nindent 4 }}
  ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
- to:
    {{- include "gateway.listed" (list "networkPolicy.database.to" $policy.database.to) | nindent 4 }}
  ports:
    - port: {{ int $policy.database.port }}
      protocol: TCP
{{- with $policy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end -}}
