{{/* Labels of every object. The selector has none of them, since kubeadm's selector is immutable. */}}
{{- define "sluice.labels" -}}
k8s-app: kube-proxy
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Whether the iptables programs are needed: "yes", or empty. */}}
{{- define "sluice.withIptables" -}}
{{- if or (eq .Values.mode "iptables") .Values.iptablesPrograms }}yes{{ end }}
{{- end }}

{{- define "sluice.image" -}}
{{- $ending := ternary "-iptables" "" (eq (include "sluice.withIptables" .) "yes") -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (print .Chart.AppVersion $ending) }}
{{- end }}

{{- define "sluice.config" -}}
{{- $config := dict
      "apiVersion" "kubeproxy.config.k8s.io/v1alpha1"
      "kind" "KubeProxyConfiguration"
      "mode" .Values.mode
      "clientConnection" (dict "kubeconfig" "/var/lib/kube-proxy/kubeconfig.conf") }}
{{- if .Values.clusterCIDR }}
{{- $_ := set $config "clusterCIDR" .Values.clusterCIDR }}
{{- end }}
{{- if .Values.serviceMonitor.enabled }}
{{- $_ := set $config "metricsBindAddress" "0.0.0.0:10249" }}
{{- end }}
{{- toYaml (mergeOverwrite $config (deepCopy .Values.config)) }}
{{- end }}

{{/* What both containers have in common. */}}
{{- define "sluice.container" -}}
image: {{ include "sluice.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- end }}

{{- define "sluice.command" -}}
- /usr/local/bin/kube-proxy
- --config=/var/lib/kube-proxy/config.conf
- --hostname-override=$(NODE_NAME)
{{- if .Values.verbosity }}
- --v={{ .Values.verbosity }}
{{- end }}
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "sluice.volumeMounts" -}}
- name: kube-proxy
  mountPath: /var/lib/kube-proxy
  readOnly: true
{{- if include "sluice.withIptables" . }}
- name: xtables-lock
  mountPath: /run/xtables.lock
- name: iptables-variant
  mountPath: /run/iptables-variant
{{- end }}
{{- end }}
