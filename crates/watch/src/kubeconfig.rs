//! Finds the API server and the credentials: in a kubeconfig file, by `--master`, or in the pod of this process.
//!
//! `KUBECONFIG` and `~/.kube/config` are not used. Error messages are those of upstream.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use kube::config::{AuthInfo, Cluster, Context, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why the API server or the credentials cannot be determined.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Misconfigured(pub(crate) String);

/// The pod that this process runs in.
#[derive(Clone, Debug)]
pub struct InClusterConfig {
    pub host: String,
    pub port: String,
    /// The directory of `token` and `ca.crt`.
    pub service_account: PathBuf,
}

impl InClusterConfig {
    /// From the environment. Host and port are empty outside of pods.
    pub fn here() -> Self {
        let variable = |name| env::var(name).unwrap_or_default();
        Self {
            host: variable("KUBERNETES_SERVICE_HOST"),
            port: variable("KUBERNETES_SERVICE_PORT"),
            service_account: "/var/run/secrets/kubernetes.io/serviceaccount".into(),
        }
    }

    fn is_real(&self) -> bool {
        !self.host.is_empty() && !self.port.is_empty() && self.service_account.join("token").is_file()
    }

    fn kubeconfig(&self) -> Result<Kubeconfig, Misconfigured> {
        if self.host.is_empty() || self.port.is_empty() {
            return Err(Misconfigured(
                "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT \
                 must be defined"
                    .into(),
            ));
        }
        let token = self.service_account.join("token");
        fs::read(&token).map_err(|error| Misconfigured(go_error("open", &token, &error)))?;
        let ca = self.service_account.join("ca.crt");
        let readable = fs::read(&ca).map_err(|error| {
            let err = go_error("open", &ca, &error);
            tracing::error!("Expected to load root CA config from {}, but got err: {err}", ca.display());
        });
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let cluster = Cluster {
            server: Some(format!("https://{host}:{}", self.port)),
            certificate_authority: readable.ok().map(|_| text(&ca)),
            ..Cluster::default()
        };
        Ok(only(cluster, AuthInfo { token_file: Some(text(&token)), ..AuthInfo::default() }))
    }
}

/// Finds the API server. The result has a single context, which is the current one.
pub fn locate(
    kubeconfig: Option<&Path>,
    master: Option<&str>,
    pod: &InClusterConfig,
) -> Result<Kubeconfig, Misconfigured> {
    let (kubeconfig, master) =
        (kubeconfig.filter(|path| !path.as_os_str().is_empty()), master.filter(|master| !master.is_empty()));
    if kubeconfig.is_none() && master.is_none() {
        tracing::info!(
            "Neither kubeconfig file nor master URL was specified, falling back to in-cluster config"
        );
        return pod.kubeconfig();
    }
    let file = match kubeconfig {
        Some(path) => read(path)?,
        None => Kubeconfig::default(),
    };
    match choose(file, master)? {
        Some(chosen) => Ok(chosen),
        None if pod.is_real() => pod.kubeconfig(),
        None => Err(invalid(
            "no configuration has been provided, try setting KUBERNETES_MASTER environment variable",
        )),
    }
}

/// The files that contain credentials and CA certificates. They may be rotated.
pub fn files(kubeconfig: &Kubeconfig) -> Vec<PathBuf> {
    let clusters = kubeconfig.clusters.iter().filter_map(|named| named.cluster.as_ref());
    let users = kubeconfig.auth_infos.iter().filter_map(|named| named.auth_info.as_ref());
    let of_users = users.flat_map(|user| [&user.client_certificate, &user.client_key, &user.token_file]);
    let all = clusters.map(|cluster| &cluster.certificate_authority).chain(of_users);
    all.flatten().map(PathBuf::from).collect()
}

fn read(path: &Path) -> Result<Kubeconfig, Misconfigured> {
    path.metadata().map_err(|error| Misconfigured(go_error("stat", path, &error)))?;
    Kubeconfig::read_from(path).map_err(|error| {
        // Further lines quote the file, which contains tokens and keys.
        let error = error.to_string();
        let problem = error.lines().next().unwrap_or_default();
        Misconfigured(format!("error loading config file {:?}: {problem}", path.display()))
    })
}

/// The cluster and user of the current context, with the server replaced by `master`. `None` if the file names no server.
pub(crate) fn choose(file: Kubeconfig, master: Option<&str>) -> Result<Option<Kubeconfig>, Misconfigured> {
    let missing = |what, name: &str| Misconfigured(format!("{what} {name:?} does not exist"));
    let context = match file.current_context.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => {
            let found = file.contexts.iter().find(|named| named.name == name);
            found.and_then(|named| named.context.clone()).ok_or_else(|| missing("context", name))?
        }
        None => Context::default(),
    };
    let user_name = context.user.unwrap_or_default();
    let user = match file.auth_infos.into_iter().find(|named| named.name == user_name) {
        Some(named) => without_blanks(named.auth_info.unwrap_or_default()),
        None if user_name.is_empty() => AuthInfo::default(),
        None => return Err(missing("auth info", &user_name)),
    };
    let cluster_name = context.cluster;
    let mut cluster = match file.clusters.into_iter().find(|named| named.name == cluster_name) {
        Some(named) => without_blanks(named.cluster.unwrap_or_default()),
        None if cluster_name.is_empty() => Cluster::default(),
        None => return Err(missing("cluster", &cluster_name)),
    };
    cluster.server = master.map(str::to_owned).or(cluster.server);
    match &cluster.server {
        Some(server) => cluster.server = Some(with_scheme(server, &cluster, &user)),
        None if cluster_name.is_empty() => return Ok(None),
        None => return Err(invalid(&format!("no server found for cluster {cluster_name:?}"))),
    }
    require_readable(&[
        (&user.client_certificate, "client-cert", &user_name),
        (&user.client_key, "client-key", &user_name),
        (&cluster.certificate_authority, "certificate-authority", &cluster_name),
    ])?;
    let is_secure = cluster.server.as_ref().is_some_and(|server| server.starts_with("https://"));
    // Credentials are not sent without TLS.
    let user = if is_secure { user } else { impersonation_of(user) };
    Ok(Some(only(cluster, user)))
}

/// A server without a scheme gets `https` if there is any TLS configuration.
fn with_scheme(server: &str, cluster: &Cluster, user: &AuthInfo) -> String {
    let speaks_tls = cluster.certificate_authority.is_some()
        || cluster.certificate_authority_data.is_some()
        || cluster.insecure_skip_tls_verify == Some(true)
        || user.client_certificate.is_some()
        || user.client_certificate_data.is_some();
    match (server.contains("://"), speaks_tls) {
        (true, _) => server.to_owned(),
        (false, true) => format!("https://{server}"),
        (false, false) => format!("http://{server}"),
    }
}

fn require_readable(files: &[(&Option<String>, &str, &str)]) -> Result<(), Misconfigured> {
    let unreadable = |(path, what, whose): &(&Option<String>, &str, &str)| {
        let path = Path::new(path.as_ref()?);
        let error = fs::File::open(path).err()?;
        let (shown, due) = (path.display(), go_error("open", path, &error));
        Some(format!("unable to read {what} {shown} for {whose} due to {due}"))
    };
    let problems: Vec<_> = files.iter().filter_map(unreadable).collect();
    match problems.as_slice() {
        [] => Ok(()),
        [one] => Err(invalid(one)),
        several => Err(invalid(&format!("[{}]", several.join(", ")))),
    }
}

fn impersonation_of(user: AuthInfo) -> AuthInfo {
    AuthInfo {
        impersonate: user.impersonate,
        impersonate_uid: user.impersonate_uid,
        impersonate_groups: user.impersonate_groups,
        impersonate_user_extra: user.impersonate_user_extra,
        ..AuthInfo::default()
    }
}

/// A kubeconfig with a single cluster and user.
fn only(cluster: Cluster, user: AuthInfo) -> Kubeconfig {
    let context = Context { user: Some(String::new()), ..Context::default() };
    Kubeconfig {
        clusters: vec![NamedCluster { cluster: Some(cluster), ..NamedCluster::default() }],
        auth_infos: vec![NamedAuthInfo { auth_info: Some(user), ..NamedAuthInfo::default() }],
        contexts: vec![NamedContext { context: Some(context), ..NamedContext::default() }],
        current_context: Some(String::new()),
        ..Kubeconfig::default()
    }
}

/// Removes empty fields, which mean the same as absent ones.
fn without_blanks<T: Serialize + DeserializeOwned + Clone>(whole: T) -> T {
    let Ok(serde_json::Value::Object(mut fields)) = serde_json::to_value(&whole) else { return whole };
    fields.retain(|_, value| value.as_str() != Some(""));
    serde_json::from_value(fields.into()).unwrap_or(whole)
}

fn invalid(problem: &str) -> Misconfigured {
    Misconfigured(format!("invalid configuration: {problem}"))
}

/// Formats an I/O error like Go.
pub(crate) fn go_error(operation: &str, path: &Path, error: &io::Error) -> String {
    let words = error.to_string();
    let words = words.split(" (os error").next().unwrap_or_default().to_lowercase();
    format!("{operation} {}: {words}", path.display())
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests;
